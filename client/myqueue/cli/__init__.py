"""The command `myqueue`: topics, producing, consuming, consumers and the cluster from a shell.

It needs typer and rich (`pip install 'myqueue[cli]'`). The rest of the library never imports it.
"""
