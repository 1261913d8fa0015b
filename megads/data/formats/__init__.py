"""Token files: the formats of this family, written and read. Never imports torch.

``.bin`` holds tokens back to back and is the same in all of them; ``.idx`` says where sequences and
documents begin. ``token_file`` reads, ``writer`` writes, ``record`` is what is known beyond Megatron's format.
"""
