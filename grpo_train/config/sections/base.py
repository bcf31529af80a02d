"""What every section is made of: number types, key checks, errors about several keys. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from grpo_train.run_dir.errors import did_you_mean
from grpo_train.run_dir.safe_json import half_character

INT_MAX = 2**31 - 1
PositiveInt = Annotated[int, Field(gt=0, le=INT_MAX)]
NonNegativeInt = Annotated[int, Field(ge=0, le=INT_MAX)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


def conflict(message: str, *keys: str) -> PydanticCustomError:
    """An error about several keys; it is located at the first of ``keys`` (``section.key``) that the user set."""
    return PydanticCustomError("conflict", "{message}", {"message": message, "keys": list(keys)})


@dataclass(frozen=True)
class NameOrFunction:
    """A text that is one of the known names, or a user's ``file.py:function``."""

    known: Sequence[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        names = {"enum": list(self.known), "type": "string"}
        return {"anyOf": [names, {"description": "file.py:function", "pattern": "^.+:\\w+$", "type": "string"}]}

    def _check(self, value: str) -> str:
        if ":" not in value and value not in self.known:
            hint = did_you_mean(value, self.known, "known names")
            raise PydanticCustomError("name", "{message}", {"message": f"unknown name; {hint}, or file.py:function"})
        return value


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_what_yaml_accepts(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject YAML's yes, on and true for numbers, which Python would read as 1, and half characters."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("boolean", "input should not be true or false")
        if isinstance(value, str) and (half := half_character(value)):
            raise PydanticCustomError("surrogate", "{message}", {"message": f"the text {half}"})
        return value
