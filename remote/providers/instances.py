"""Instances as they were listed last, shared by the boxes of an account, and the address of a box's instance.

Providers allow few requests (Lambda: one a second), so boxes that connect at the same time share one answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import field, replace

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.lazy_dataclass import dataclass
from grpo_train.run_dir.suggest import did_you_mean
from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.providers.instance import Instance
from remote.providers.lambda_cloud import list_instances
from remote.providers.provider import Provider, ProviderError

FRESH_S = 3.0
"""An answer, or an error, stands for this long."""


@dataclass
class _Account:
    """What one account answered last."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float | None = None
    instances: list[Instance] = field(default_factory=list)
    error: ProviderError | None = None


_accounts: dict[tuple[str, str, str], _Account] = {}
_accounts_lock = threading.Lock()


def _account(provider: Provider) -> _Account:
    with _accounts_lock:
        return _accounts.setdefault((provider.kind, provider.base, provider.key_file), _Account())


def instances(provider: Provider, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK) -> list[Instance]:
    """The instances of an account, at most FRESH_S old. Raises ProviderError."""
    account = _account(provider)
    with account.lock:
        now = clock.monotonic()
        if account.asked_at is None or now - account.asked_at >= FRESH_S:
            try:
                account.instances, account.error = list_instances(provider, closing, clock), None
            except ProviderError as error:
                account.error = error
            account.asked_at = clock.monotonic()
        if account.error is not None:
            raise ProviderError(str(account.error), code=account.error.code)
        return list(account.instances)


def last_seen(box: Box) -> Instance | None:
    """The instance of a box as it was listed last, without asking; None if it was not, or without a provider."""
    if box.provider is None:
        return None
    found = _named(box, _account(box.provider).instances)
    return found[-1] if found else None


def last_error(box: Box) -> str:
    """Why the instances of a box's account could not be listed last; "" if they were, or were not asked for."""
    error = None if box.provider is None else _account(box.provider).error
    return "" if error is None else str(error)


def located(box: Box, closing: Callable[[], bool] = lambda: False, clock: Clock = CLOCK) -> Box:
    """The box with the address of its instance; a box with an address, or without a provider, as it is.

    Raises Unreachable where asking again may help (it boots, the provider does not answer), else Refused.
    """
    if box.provider is None or box.host:
        return box
    name = instance_name(box)
    try:
        listed = instances(box.provider, closing, clock)
    except ProviderError as error:
        if error.code in ("provider_key", "provider_reply"):
            raise Refused(str(error)) from error
        raise Unreachable(str(error)) from error
    found = _named(box, listed)
    if not found:
        others = sorted({each.name for each in listed if each.name})
        hint = did_you_mean(name, others) if others else "this account has none with a name"
        raise Refused(f"{box.provider.kind} has no instance named '{name}'; {hint}")
    running = [each for each in found if not each.has_ended]
    if not running:
        raise Refused(f"the instance '{name}' is {found[-1].state}; rent another one under this name")
    if len(running) > 1:
        ids = ", ".join(each.id for each in running)
        raise Refused(f"{len(running)} instances are named '{name}' ({ids}); rename all but one")
    if not running[0].address:
        raise Unreachable(f"the instance '{name}' is {running[0].state or 'not ready'} and has no address yet")
    return replace(box, host=running[0].address)


def known(box: Box) -> Box:
    """As :func:`located`, with the address that was listed last, if there is one."""
    seen = last_seen(box)
    return located(box) if box.host or seen is None or not seen.address else replace(box, host=seen.address)


def instance_name(box: Box) -> str:
    """The name of the instance of a box with a provider."""
    return (box.provider.instance if box.provider else "") or box.name


def _named(box: Box, listed: list[Instance]) -> list[Instance]:
    """The instances of a box's name, those that run last."""
    found = [each for each in listed if each.name == instance_name(box)]
    return sorted(found, key=lambda each: not each.has_ended)
