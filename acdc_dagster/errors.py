"""What can go wrong in a way that its user can mend.

Every such fault is one `AcdcError`: what is wrong, and what to do about it. The command line prints
it without a traceback and Dagster shows it as the reason of the failure; anything else that is
raised is a bug of ours and keeps its traceback.
"""


class AcdcError(Exception):
    """A fault that the user can mend.

    Args:
        problem: What is wrong, naming the file, table, column, line or id.
        remedy: What to do next, as an instruction.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  Remedy: {self.remedy}"


class DeclarationError(AcdcError):
    """A job's or an environment's YAML, prompt or schema file is wrong."""


class NoDeploymentError(DeclarationError):
    """The folder holds no deployment."""


class SourceError(AcdcError):
    """The job's input cannot be read: a table, file or column is not there."""


class ModelError(AcdcError):
    """The model's folder, tokenizer or chat template cannot be used."""


class BackendError(AcdcError):
    """The place where the plan should run is not usable, or its workers failed."""


class IncompleteError(AcdcError):
    """A stage needs what an earlier stage has not finished."""


class ShardTakenError(AcdcError):
    """Another worker commits to the same shard."""
