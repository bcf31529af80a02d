"""Move the wall clock of a fresh interpreter to ``start`` (seconds since 1970), from where it runs on.

For reproducibility checks: running a program with two starts shows whether its output depends on the date. Monotonic
clocks do not change.
"""

import datetime
import time

start: float
_real_time, _real_time_ns = time.time, time.time_ns
_offset_ns = int(start * 1e9) - _real_time_ns()  # noqa: F821  (set by the harness)
_gmtime, _localtime, _strftime, _asctime, _ctime = time.gmtime, time.localtime, time.strftime, time.asctime, time.ctime

_date = datetime.date
_datetime = datetime.datetime


def _now() -> float:
    return _real_time() + _offset_ns / 1e9


class _SameClass(type):
    """Metaclass that makes instances of the real class instances of the replacement."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class date(_date, metaclass=_SameClass):
    def __new__(cls, *arguments, **named):  # type: ignore[no-untyped-def]
        return _date.__new__(_date if cls is date else cls, *arguments, **named)

    @classmethod
    def today(cls):  # type: ignore[no-untyped-def]
        return _date.fromtimestamp(_now())


class datetime_(_datetime, metaclass=_SameClass):
    def __new__(cls, *arguments, **named):  # type: ignore[no-untyped-def]
        return _datetime.__new__(_datetime if cls is datetime_ else cls, *arguments, **named)

    @classmethod
    def now(cls, tz=None):  # type: ignore[no-untyped-def]
        return _datetime.fromtimestamp(_now(), tz)

    @classmethod
    def utcnow(cls):  # type: ignore[no-untyped-def]
        return _datetime.fromtimestamp(_now(), datetime.timezone.utc).replace(tzinfo=None)

    @classmethod
    def today(cls):  # type: ignore[no-untyped-def]
        return _datetime.fromtimestamp(_now())


datetime_.__name__ = datetime_.__qualname__ = "datetime"
date.__module__ = datetime_.__module__ = "datetime"
datetime.date = date  # type: ignore[misc]
datetime.datetime = datetime_  # type: ignore[misc]
time.time = _now
time.time_ns = lambda: _real_time_ns() + _offset_ns
time.gmtime = lambda seconds=None: _gmtime(_now() if seconds is None else seconds)
time.localtime = lambda seconds=None: _localtime(_now() if seconds is None else seconds)
time.ctime = lambda seconds=None: _ctime(_now() if seconds is None else seconds)
time.asctime = lambda moment=None: _asctime(_localtime(_now()) if moment is None else moment)
time.strftime = lambda format, moment=None: _strftime(format, _localtime(_now()) if moment is None else moment)
