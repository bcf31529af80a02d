"""Tokenizer of the tiny model: byte-level BPE (any text), single digits, and one token for each R1 tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_train.tasks.shared.template import R1_TEMPLATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EOS, PAD = "<|endoftext|>", "<|pad|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Added but not special tokens, as in Qwen3's tokenizer."""
VOCABULARY = 512
"""256 bytes, eos, pad, four tags, and the rest merges."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's split into words and single digits. ``AutoTokenizer`` rebuilds a Qwen2 model's tokenizer with it and ignores
the split in tokenizer.json."""

_TEXT = f"""{R1_TEMPLATE}
Anna has 12 apples and buys 5 more bags with 6 apples each. How many apples does she have in all? She buys 5 times 6,
which is 30 apples, so she has 12 and 30, which is 42 apples. A train travels at 60 miles per hour for 3 hours and then
stops for 20 minutes. How far does it travel, and how much time does the whole trip take? There are 24 students in the
class, and half of them are girls. If each of the boys gives the teacher 2 flowers, how many flowers will there be? The
price of a shirt is $15, and a pair of shoes costs three times as much. How much money would he need to pay for both of
them, if there is a discount of 10% on the total? Every day, a farmer sells some of the eggs that his chickens lay. What
is the number of dollars that he makes every week at the market? First, we find out how many hours they worked together.
Then we need to add the time that was left over from the last week. Therefore the final answer is the sum of the two.
"""
"""Training text of the merges: the template, and word problems similar to GSM8K's."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer. The result is deterministic."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[EOS, PAD],
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
