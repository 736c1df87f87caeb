"""Spark jobs that compute partition sizes, offsets and lag on a schedule."""
