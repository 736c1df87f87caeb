"""The library's version, sent in its User-Agent."""

VERSION = "0.4.0"
