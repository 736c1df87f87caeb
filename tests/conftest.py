"""Settings of all tests."""

from hypothesis import settings

# Machines are noisy: how long one example takes says nothing about the code.
settings.register_profile("myqueue", deadline=None)
settings.load_profile("myqueue")
