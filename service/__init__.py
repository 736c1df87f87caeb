"""Shared by all processes: settings, lifecycle, HTTP, logs, calls to other processes. Nothing here stores messages."""
