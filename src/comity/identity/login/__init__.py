"""Sign-in of people: browser sessions, OpenID Connect, one-time links and the sign-in pages."""
