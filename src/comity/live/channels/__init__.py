"""Channels of live servers, such as chats and mailboxes, and their topics."""
