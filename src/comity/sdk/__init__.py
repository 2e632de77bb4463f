"""For authors of servers, agents and topic participants."""
