"""Formats of strings as patterns: what ``format`` means in a JSON schema. Each expression matches only what its format
allows, not always all of it: of international names, for example, the ASCII ones."""

from __future__ import annotations

from functools import lru_cache

from . import Unsupported
from .patterns import Pattern, search

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR}:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR})"
_N = r"\d{1,6}"
_DAYS = rf"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_HOURS = rf"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}\.){{0,3}}[A-Za-z](?:[A-Za-z0-9-]{{0,60}}[A-Za-z0-9])?"
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_H16 = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [rf"(?:{_H16}:){{7}}{_H16}"]
    + [
        rf"(?:{_H16}(?::{_H16}){{0,{before - 1}}})?::(?:{_H16}(?::{_H16}){{0,{6 - before}}})?" if before
        else rf"::(?:{_H16}(?::{_H16}){{0,6}})?"
        for before in range(7)
    ]
)  # fmt: skip
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_NO_COLON = r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_AUTHORITY = rf"//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{{2}})*@)?{_HOST}(?::\d{{1,5}})?(?:/{_PCHAR}*)*"
_ROOTED = rf"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_ROOTED}|{_PCHAR}+(?:/{_PCHAR}*)*){_QUERY}"
_RELATIVE = rf"(?:{_AUTHORITY}|{_ROOTED}|{_NO_COLON}+(?:/{_PCHAR}*)*|){_QUERY}"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_N}W|{_DAYS}(?:{_HOURS})?|{_HOURS})",
    "email": rf"{_ATEXT}{{1,30}}(?:\.{_ATEXT}{{1,30}})?@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
    "ipv6": f"(?:{_IPV6})",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d{{0,8}})(?:#|{_POINTER})",
}
_FORMATS |= {
    "idn-email": _FORMATS["email"],
    "idn-hostname": _FORMATS["hostname"],
    "iri": _FORMATS["uri"],
    "iri-reference": _FORMATS["uri-reference"],
    "uri-template": _FORMATS["uri-reference"],
}
FORMATS = tuple(_FORMATS)
"""The formats that are enforced. Each expression matches only what the format allows, not always all of it: of
international names, for example, the ASCII ones."""

REFUSED_FORMATS = ("regex",)


@lru_cache(None)
def format_pattern(name: str) -> Pattern | None:
    """The strings of a format; None for a name that JSON Schema does not define, which says nothing."""
    if name in REFUSED_FORMATS:
        raise Unsupported(f'format "{name}"')
    return search(f"^(?:{_FORMATS[name]})$") if name in _FORMATS else None
