"""Chats to finetune on: their files, chat templates, what counts in the loss, packed rows. No torch."""
