"""Asking before something is deleted."""

import sys

import typer

from myqueue.cli.failures import REFUSED, USAGE, CommandFailed
from myqueue.cli.session import Session


def confirm_deletion(session: Session, question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("--yes: needed where nobody can be asked, because deleting cannot be undone", USAGE)
    if not typer.confirm(question, err=True):
        session.output.note("nothing was deleted")
        raise typer.Exit(REFUSED)
