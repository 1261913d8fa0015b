"""``python -I -S client.py ADDRESS WORDS...``: runs ``python -m megads WORDS`` in a process that the server forks.

For tests of shell lines: the program ``megads`` on their PATH. It waits and ends with the exit code.
"""

import os
import socket
import sys


def main() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from tests.forks.server import Request, receive, send

    words = [sys.executable, "-m", "megads", *sys.argv[2:]]
    send(connection, Request(words, os.getcwd(), dict(os.environ)), (0, 1, 2))
    status = receive(connection)[0]
    if status is None:
        os.execv(sys.executable, words)
    sys.exit(os.waitstatus_to_exitcode(status))


main()
