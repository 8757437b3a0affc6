"""Authentication and authorisation of the listeners: users, tokens, certificates, ACLs, audit."""
