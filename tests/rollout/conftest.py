"""All roots of these tests have the micro model. Tests of a backend take the tiny one, whose texts and sizes differ."""

from tests.support import micro

make_root = micro.make_root
