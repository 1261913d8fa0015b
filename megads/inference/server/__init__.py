"""A model behind HTTP: OpenAI's completions and chat, Megatron-LM's ``PUT /api``, and a page to try it."""
