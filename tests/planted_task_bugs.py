"""Bugs of the tasks that `tests/mutations.py` plants, and the tests that must notice each of them."""

from __future__ import annotations

from tests.planted_bugs import Mutation

LAYOUTS = "tests/parity/test_task_layouts.py"
LOOP = "tests/train/test_task_loop.py"
SAMPLES = "tests/data/tasks/test_samples.py"

TASK_MUTATIONS = (
    Mutation(
        "the label of a question is that of the answer before",
        "megads/data/tasks/race.py",
        'ord(answer) - ord("A")',
        'ord(answer) - ord("B")',
        ("tests/data/tasks/test_race.py",),
    ),
    Mutation(
        "labels of ranks are those of the class before",
        "megads/engine/task_batches.py",
        "labels = batch[:, -1]\n",
        "labels = batch[:, -1] - 1\n",
        (LAYOUTS, "-k", "scored_like_one_rank and data"),
    ),
    Mutation(
        "examples of the other data ranks are not scored",
        "megads/engine/evaluation.py",
        "        dist.all_reduce(sums, group=groups.world)\n",
        "        pass\n",
        (LAYOUTS, "-k", "scored_like_one_rank and data"),
    ),
    Mutation(
        "F1 is that of the first class",
        "megads/train/task_scores.py",
        "_score(answers, samples, classes - 1)",
        "_score(answers, samples, classes - 2)",
        ("tests/train/test_task_scores.py",),
    ),
    Mutation(
        "F1 forgets what is predicted wrongly",
        "megads/train/task_scores.py",
        "2 * both / (2 * both + missed + wrong)",
        "2 * both / (2 * both + missed)",
        ("tests/train/test_task_scores.py",),
    ),
    Mutation(
        "the last examples of a file, which fill no batch, are not scored",
        "megads/data/tasks/samples.py",
        "self.blocks = -(-len(file.examples) // block)",
        "self.blocks = len(file.examples) // block",
        (SAMPLES,),
    ),
    Mutation(
        "the last example of a file stands for the rows behind it",
        "megads/data/tasks/samples.py",
        "self.packer(examples[index]) if index < len(examples) else self.packer.row.empty()",
        "self.packer(examples[min(index, len(examples) - 1)])",
        (SAMPLES,),
    ),
    Mutation(
        "every epoch has the order of the first",
        "megads/data/tasks/samples.py",
        "np.random.PCG64([self.seed, epoch])",
        "np.random.PCG64([self.seed, 0])",
        (SAMPLES,),
    ),
    Mutation(
        "the best checkpoint is the one with the lowest accuracy",
        "megads/train/task_loop.py",
        "accuracy > best",
        "accuracy < best",
        (LOOP, "-k", "highest_accuracy"),
    ),
    Mutation(
        "of equally good checkpoints the last is the best",
        "megads/train/task_loop.py",
        "accuracy > best",
        "accuracy >= best",
        (LOOP, "-k", "highest_accuracy"),
    ),
    Mutation(
        "the best checkpoint is judged by the loss",
        "megads/train/task_loop.py",
        'accuracy, best, loss = found.overall.accuracy, t.progress.best_accuracy, found.row()["valid_loss"]',
        'accuracy, best, loss = (-found.overall.loss, t.progress.best_accuracy, found.row()["valid_loss"])',
        (LOOP, "-k", "highest_accuracy"),
    ),
    Mutation(
        "the best checkpoint is removed with the others",
        "megads/train/task_loop.py",
        "self.saving.saver.pinned = self.training.progress.best_iteration",
        "self.saving.saver.pinned = 0",
        (LOOP, "-k", "highest_accuracy"),
    ),
    Mutation(
        "the head of other classes is read",
        "megads/train/resume.py",
        'is_other = bool(names) and " ".join(names)',
        'is_other = False and " ".join(names)',
        (LOOP, "-k", "other_classes"),
    ),
    Mutation(
        "dropout is active when a model is scored",
        "megads/engine/evaluation.py",
        "    engine.module.eval()\n",
        "    engine.module.train()\n",
        (LOOP, "-k", "without_dropout"),
    ),
    Mutation(
        "rows that do not count have a loss",
        "megads/models/classifier.py",
        "losses.masked_fill(labels < 0, 0.0)",
        "losses",
        ("tests/models/test_classifier.py", "-k", "do_not_count"),
    ),
    Mutation(
        "the loss is the mean of all rows, also of those that do not count",
        "megads/engine/task_batches.py",
        "self.masks_loss = True",
        "self.masks_loss = False",
        (LAYOUTS, "-k", "scored_like_one_rank and data"),
    ),
    Mutation(
        "a decoder is read at the token before the last",
        "megads/models/classifier.py",
        "last = documents.lengths.tokens - 1",
        "last = (documents.lengths.tokens - 2).clamp(min=0)",
        ("tests/models/test_classifier.py", "-k", "Llama"),
    ),
    Mutation(
        "an encoder's sequence ranks all give a state",
        "megads/models/classifier.py",
        "return state if self.context.groups.seq_rank == 0 else state * 0.0",
        "return state",
        (LAYOUTS, "-k", "scored_like_one_rank and sequence"),
    ),
    Mutation(
        "classes are numbered by the file that is scored",
        "megads/launch/preflight/checkpoint_start.py",
        "(names := classes_of(found.manifest))",
        "(names := ())",
        ("tests/e2e/test_finetune.py", "-k", "pretrained_checkpoint"),
    ),
)
