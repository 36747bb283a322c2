"""How a process of the command line begins."""

import subprocess
import sys

EARLY = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "safeset.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
import runpy
runpy.run_module("safeset", run_name="__main__")
"""


def test_an_interrupt_while_the_command_line_is_loaded_prints_no_traceback():
    ended = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_module_is_the_command_line():
    ended = subprocess.run([sys.executable, "-m", "safeset", "--version"], capture_output=True, text=True)
    assert ended.returncode == 0
    assert ended.stdout.strip()
