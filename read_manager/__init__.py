"""A read manager: stateless, reads a standby, asks the write manager where a standby cannot know."""
