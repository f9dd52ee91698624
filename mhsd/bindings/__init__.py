"""How messages come in and answers go out: HTTP and stdio. What a message means is dispatch's matter."""
