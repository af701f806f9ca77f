"""The version, apart from everything that is slow to import."""

VERSION = "0.1.0"
