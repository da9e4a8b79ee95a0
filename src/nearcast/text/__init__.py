"""From text to tokens: analyzer, vocabulary, boolean expressions."""
