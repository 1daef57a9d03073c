"""What a person sees of records: values as short text, pictures, tables for terminals, HTML."""
