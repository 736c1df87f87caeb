"""Bytes in JSON: UTF-8 text as a string, anything else as `{"base64": "…"}`."""

import base64
import binascii


def bytes_from_json(value: object) -> bytes:
    """A string is its UTF-8 bytes, `{"base64": "…"}` is what it decodes to."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError('must not hold lone surrogates; send bytes as {"base64": "…"}') from None
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("is not valid base64") from None
    raise ValueError('must be a string or {"base64": "…"}')


def bytes_to_json(value: bytes) -> str | dict[str, str]:
    """UTF-8 as a string: a string that came in goes out unchanged."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
