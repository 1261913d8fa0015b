"""Small files in the published formats."""

import json

MNLI_HEAD = "index\tpromptID\tpairID\tgenre\ts1_bp\ts2_bp\ts1_parse\ts2_parse\tsentence1\tsentence2\tlabel1\tgold_label"


def mnli_line(number, premise, hypothesis, label):
    return "\t".join([str(number), "1", "1e", "x", "(", "(", "(", "(", premise, hypothesis, label, label])


def write_mnli(path, rows, head=MNLI_HEAD):
    lines = [head, *(mnli_line(number, *row) for number, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_qqp(path, lines, head="id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"):
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(path)


def race_object(article="A b . c", questions=("Who _ ?", "Why?"), answers=("B", "D")):
    options = [["one", "two", "three", "four"]] * len(questions)
    return {"article": article, "questions": list(questions), "options": options, "answers": list(answers), "id": "x"}


def write_race(folder, objects):
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in objects.items():
        (folder / name).write_text(json.dumps(each) if isinstance(each, dict) else each, encoding="utf-8")
    return str(folder)


def write_json_rows(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)
