"""What every process has: settings, lifecycle, HTTP, logs, internal calls. No queue nouns in here."""
