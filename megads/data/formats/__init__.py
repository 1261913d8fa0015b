"""Token files: the formats of this family, written and read. Never imports torch.

``.bin`` holds tokens back to back and is the same in all of them; ``.idx`` says where sequences and
documents begin.

=============  =========================================================================
prefix         the name that the two files share
dtypes         the integer types and their codes; ``best_dtype``
files          files opened, read and published so that nothing of them can hang or crash
base           ``TokenFile``: what every reader offers
mmap, tnt      one format each: ``IndexedDataset``, ``TntDataset``, and their index files
open           ``open_dataset``: the reader for whatever is there
index_content  what an index says, whatever its format
writer         ``IndexedWriter``, ``make_writer``, ``write_index``
record         ``<prefix>.info.json``: which tokenizer made the file
checksums      CRC-32 of every block, kept in the record
=============  =========================================================================
"""
