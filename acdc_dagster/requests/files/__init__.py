"""Batch JSONL files as a source: OpenAI's, Anthropic's and Gemini's, here or in an object store."""
