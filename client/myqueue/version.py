"""The version of the system: of the API that it describes, and of the library, which sends it in its User-Agent."""

VERSION = "0.14.0"
