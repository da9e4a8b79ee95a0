"""What are its words? Analyzer, vocabulary, boolean expressions."""
