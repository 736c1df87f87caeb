"""Programs that show how to use myqueue."""
