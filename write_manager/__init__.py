"""The write manager: the only writer of the metadata, and the one place where cursors move."""
