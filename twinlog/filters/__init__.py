"""SQL92 filters as RocketMQ understands them: lexer, parser, evaluation."""
