"""``megads finetune``: a pretrained model on chats or labelled examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megads.cli.options.request import settings_command
from megads.cli.options.run import run_options
from megads.cli.train import begin_run

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest


@settings_command
@run_options
def finetune(request: Callable[[], TrainRequest], **options: Any) -> None:
    """Finetune a pretrained model: --task chat --load DIR --train-data F... --valid-data F...

    Tasks: chat (chats and instructions), MNLI, QQP, RACE, and jsonl for labelled files of your own; docs/finetune.md
    describes them.
    """

    def asked() -> TrainRequest:
        from megads.launch.finetune import finetune_request

        return finetune_request(request())

    begin_run(asked, **options)
