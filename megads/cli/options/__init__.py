"""What commands share: options, arguments, notes."""
