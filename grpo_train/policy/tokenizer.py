"""A model's tokenizer: loading it without weights, and the text of generated tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_train.policy.locate import PolicyError, check_configs, hub_id, resolve_backbone
from grpo_train.tasks.shared.hub import hub_answers

HALF = "\ufffd"
"""What is decoded of a part of a character."""
BYTE = re.compile("<0x[0-9A-F]{2}>")
MOST_HALVES = 16
"""Tokens after which bytes that are not a character are taken as they are."""


def load_tokenizer(backbone: str, root: Path) -> Any:
    """The tokenizer of a ``model.backbone``, from the cache where the hub does not answer. Raises PolicyError."""
    from transformers import AutoTokenizer  # takes seconds to import

    source = resolve_backbone(backbone, root)
    is_local = Path(source).is_dir()
    if is_local:
        check_configs(Path(source))
    name, commit = (source, None) if is_local else hub_id(source)
    cache_only = not is_local and not hub_answers(name, commit=commit)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=commit or "main", local_files_only=cache_only)
        check_vocabulary(tokenizer)
        return tokenizer
    except Exception as error:  # libraries raise many types for files that they cannot read
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PolicyError(f"cannot load the tokenizer of '{source}': {reason}", code="no_model") from error


def check_vocabulary(tokenizer: Any) -> None:
    """Raise ValueError for a tokenizer without one: transformers makes it where tokenizer.json cannot be opened."""
    if not tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys() - set(tokenizer.all_special_tokens):
        raise ValueError("the tokenizer has no vocabulary; its tokenizer.json is missing or cannot be opened")


def special_start(tokenizer: Any) -> tuple[int, ...]:
    """Token ids that a tokenizer puts before a text (Llama's and Gemma's beginning of text).

    What some put after it, such as an end of text, has no place between a prompt and its completion.
    """
    ids, plain = (tokenizer("x", add_special_tokens=each)["input_ids"] for each in (True, False))
    starts = (at for at in range(len(ids)) if ids[at : at + len(plain)] == plain)
    return tuple(ids[: next(starts, 0)])


def eos_ids(generation_config: object, tokenizer: object) -> list[int]:
    """Token ids that end a completion: the tokenizer's and the model's (Gemma's and Llama's ends of turn)."""
    of_model = getattr(generation_config, "eos_token_id", None)
    tokens = [getattr(tokenizer, "eos_token_id", None), *(of_model if isinstance(of_model, list) else [of_model])]
    return list(dict.fromkeys(int(token) for token in tokens if token is not None))


def text_of(ids: Sequence[int], tokenizer: Any, ends: Sequence[int]) -> str:
    """Text of a completion as generated, special tokens included, without the token of ``ends`` that ended it.

    Which tokens are special is up to the tokenizer: in some, ``<think>`` and ``<answer>`` are.
    """
    written = ids[:-1] if ids and ids[-1] in ends else ids
    text: str = tokenizer.decode(list(written), skip_special_tokens=False, spaces_between_special_tokens=False)
    return text


class TokenTexts:
    """Characters of a completion's text that each token wrote, in time that grows with the tokens."""

    def __init__(self, tokenizer: Any, ends: Sequence[int]) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._before = tuple(tokenizer("a", add_special_tokens=False)["input_ids"][-1:])
        """What stands before a token: at the beginning of a text, some tokenizers strip its space."""
        self._texts: dict[int, str] = {}

    def lengths(self, ids: Sequence[int]) -> list[int] | None:
        """Characters of each token in :func:`text_of`; None for a tokenizer whose texts do not add up to it.

        A token has none if a later one completes its character, or if it ended the text.
        """
        written = list(ids[:-1] if ids and ids[-1] in self._ends else ids)
        lengths: list[int] = []
        texts: list[str] = []
        at = 0
        while at < len(written):
            end, first = at + 1, at == 0
            text = self._alone(written[at], first)
            if self._is_part(written[at], text):  # until no token continues its character
                while end < len(written) and self._is_part(written[end], self._alone(written[end], False)):
                    end += 1
                text = self._text(written[at:end], first)
                lengths += self._shared(written[at:end], text, first)
            else:
                lengths.append(len(text))
            texts.append(text)
            at = end
        if "".join(texts) != text_of(ids, self._tokenizer, self._ends):
            return None
        return lengths + [0] * (len(ids) - len(written))

    def _alone(self, token: int, first: bool) -> str:
        if first:
            return self._text([token], True)
        if token not in self._texts:
            self._texts[token] = self._text([token], False)
        return self._texts[token]

    def _is_part(self, token: int, text: str) -> bool:
        """Whether a token is a part of a character, or a byte, which some tokenizers decode with its neighbors."""
        if len(text) > 1:
            return HALF in text
        return text == HALF or bool(BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))))

    def _text(self, ids: Sequence[int], first: bool) -> str:
        if first or not self._before:
            return text_of(ids, self._tokenizer, ())
        before = len(text_of(self._before, self._tokenizer, ()))
        return text_of([*self._before, *ids], self._tokenizer, ())[before:]

    def _shared(self, ids: Sequence[int], whole: str, first: bool) -> list[int]:
        """Characters that each of some tokens completes; ``whole`` is their text."""
        lengths: list[int] = []
        start = done = 0
        for at in range(len(ids)):
            text = self._text(ids[start : at + 1], first and start == 0)
            complete = len(text.rstrip(HALF))
            if at - start == MOST_HALVES or at == len(ids) - 1:  # no character
                complete = len(text)
            lengths.append(min(max(0, complete - done), len(whole) - sum(lengths)))
            done = max(done, complete)
            if complete == len(text):
                start, done = at + 1, 0
        lengths[-1] += len(whole) - sum(lengths)
        return lengths
