"""All roots of these tests have the micro model."""

from tests.support import micro

make_root, tiny_model = micro.make_root, micro.tiny_model
