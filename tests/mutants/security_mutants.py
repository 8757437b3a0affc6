"""Broken security: a check of logins, rights, tokens, certificates or audit is left out."""

from typing import Final

from tests.mutants.mutant import Mutant

_CONNECTION: Final = "proxy/kafka/access/secure_connection.py"
_LOGIN: Final = "proxy/kafka/access/sasl_login.py"
_APIS: Final = "proxy/kafka/access/secured_apis.py"
_PRODUCE: Final = "proxy/kafka/produce_api.py"
_HTTP: Final = "proxy/http/access/http_access.py"
_ACLS: Final = "proxy/security/acls.py"
_LOGINS: Final = "tests/secure/test_logins.py"
_IN_FORCE: Final = "tests/secure/test_acls_in_force.py"
_OF_NAMES: Final = "tests/secure/test_rights_of_names.py"
_IN_COMMON: Final = "tests/secure/test_common_files.py"
_COMMON: Final = "proxy/security/common_file.py"
_MATRIX: Final = "tests/secure/test_rights_matrix.py"
_TLS: Final = "tests/secure/test_tls.py"
_HTTP_TESTS: Final = "tests/secure/test_http_access.py"
_IMMEDIATE: Final = "proxy/http/immediate_appends.py"
_IMMEDIATE_TESTS: Final = "tests/secure/test_immediate_access.py"
_RULES: Final = "tests/secure/test_acl_rules.py"
_RENEWAL: Final = "tests/secure/test_login_renewal.py"
_CLIENT: Final = "pidlease/kafka/client"
_TOKENS: Final = "tests/secure/test_tokens.py"
_METRICS: Final = "tests/integration/test_metrics_listener.py"
_KAFKA_ACLS: Final = "proxy/security/kafka_acls.py"
_KAFKA_ACLS_API: Final = "proxy/kafka/access/kafka_acls_api.py"
_OF_KAFKA: Final = "tests/kafka_backend/test_kafka_acls.py"
_REQUEST: Final = "proxy/http/access/request_access.py"
_METER: Final = "proxy/http/access/request_meter.py"
_OWNERS: Final = "proxy/http/owner_requests.py"
_PINGS: Final = "proxy/http/ping_connection.py"
_MEMBERS: Final = "proxy/security/member_certificates.py"
_SENT_ON: Final = "tests/secure/test_sent_on_requests.py"
_CERTIFICATES: Final = "tests/secure/test_member_certificates.py"

_LISTENERS: Final = "tests/secure/test_listeners.py"
_NAMED_LISTENERS: Final = "tests/unit/test_named_listeners.py"
_LISTENER_BROKERS: Final = "tests/kafka_listener/test_listener_brokers.py"
_BROKERS: Final = "proxy/kafka/brokers.py"

SECURITY: Final = (
    Mutant(
        "each server has other salts for unknown users",
        "proxy/security/security.py",
        "            shared.append(self._secrets)\n",
        "            pass\n",
        (f"{_IN_COMMON}::test_an_unknown_user_has_the_same_salt_at_all_servers",),
    ),
    Mutant(
        "each start has other salts for unknown users",
        "proxy/security/scram_credentials.py",
        "        self._secret = secret\n",
        "        pass\n",
        (f"{_IN_COMMON}::test_an_unknown_user_has_the_same_salt_at_all_servers",),
    ),
    Mutant(
        "Kafka decides about topics with unknown ids",
        _APIS,
        "                return _UNKNOWN_ID\n",
        "                return None\n",
        (_MATRIX,),
    ),
    Mutant(
        "a topic that Kafka has just made is denied to those who name it by its id",
        _APIS,
        "            if code is _UNKNOWN_ID and not looked:\n",
        "            if False:\n",
        (_MATRIX,),
    ),
    Mutant(
        "a PUT gives an expiry to a topic that its client may not delete",
        "proxy/http/streams/stream_catalog.py",
        "            require_deletion(name, settings)\n",
        "",
        (f"{_HTTP_TESTS}::test_a_put_makes_a_stream_of_a_topic_only_with_the_rights_to_change_it",),
    ),
    Mutant(
        "the default listener decides about logins on all",
        _CONNECTION,
        "        self.wants_login: Final = security.config.of_kafka(listener).login\n",
        "        self.wants_login: Final = security.config.kafka.login\n",
        (f"{_LISTENERS}::test_an_intruder_is_refused_where_the_listener_has_logins",),
        server=True,
    ),
    Mutant(
        "a listener without logins takes passwords in clear",
        _LOGIN,
        "        if not self._connection.wants_login:  # as in Kafka, where another listener has"
        " logins\n",
        "        if False:\n",
        (f"{_LISTENERS}::test_a_login_where_the_listener_has_none",),
        server=True,
    ),
    Mutant(
        "only the default listener is checked for other machines",
        "proxy/configuration/component_configs.py",
        "    listeners = [_exposed_kafka(each) for each in kafka_listeners(settings)]\n",
        "    listeners = [_exposed_kafka(each) for each in kafka_listeners(settings)][:1]\n",
        (f"{_NAMED_LISTENERS}::test_contradictions",),
    ),
    Mutant(
        "clients of all listeners get the default one's address",
        _BROKERS,
        "            return [self._own[listener]]\n",
        "            return [self._own[self.listeners[0]]]\n",
        (f"{_LISTENER_BROKERS}::test_one_server_has_all_its_listeners",),
    ),
    Mutant(
        "a server that lacks a listener is never seen to get it",
        _BROKERS,
        "        self.on_change(self._lacking.clear)\n",
        "        pass\n",
        (f"{_LISTENER_BROKERS}::test_a_server_without_a_listener_of_that_name_is_left_out",),
    ),
    Mutant(
        "clients of a listener with logins get the address of a member without names",
        "pidlease/coordination/members.py",
        "        if default and not (self.listeners and listener):\n",
        "        if not (self.listeners and listener):\n",
        ("tests/unit/coordination/test_member_listeners.py",),
    ),
    Mutant(
        "metrics stay on the listener of clients",
        "proxy/app.py",
        "        scrape = None if apart else self._metrics.scrape\n",
        "        scrape = None if apart and False else self._metrics.scrape\n",
        (f"{_METRICS}::test_metrics_leave_the_listener_of_clients",),
    ),
    Mutant(
        "the address of metrics wants no login",
        "proxy/app.py",
        "        if not config.is_plain:\n",
        "        if not config.is_plain and not self._security:\n",
        (f"{_METRICS}::test_beside_secured_listeners",),
    ),
    Mutant(
        "metrics are open to other machines",
        "proxy/configuration/component_configs.py",
        '        others["metrics_listen"] = security.metrics\n',
        "        pass\n",
        ("tests/secure/test_settings_checked.py::test_contradictions",),
    ),
    Mutant(
        "requests are served before a login",
        _CONNECTION,
        "            if key not in _ALLOWED[self.login.state]:\n",
        "            if key < 0:\n",
        (f"{_LOGINS}::test_nothing_else_is_served_before_the_login",),
    ),
    Mutant(
        "a large request is read before a login",
        _CONNECTION,
        "        self.request_bytes_max = security.config.login_bytes_max\n",
        "        pass\n",
        (f"{_LOGINS}::test_a_large_request_before_the_login_closes",),
    ),
    Mutant(
        "a session never ends",
        _CONNECTION,
        "        if not self._open or self.last_read >= self._expires:\n",
        "        if not self._open:\n",
        (f"{_LOGINS}::test_a_session_ends_and_may_be_renewed",),
    ),
    Mutant(
        "a renewed login may be of another user",
        _LOGIN,
        "        if before is not None and before.principal != principal:\n",
        "        if before is not None and not principal:\n",
        (f"{_LOGINS}::test_a_renewal_changes_neither_user_nor_mechanism",),
    ),
    Mutant(
        "a password is not checked",
        _LOGIN,
        "            if not await self._security.passwords.is_right(user, password, host):\n",
        "            if not user:\n",
        (f"{_LOGINS}::test_plain_refuses",),
    ),
    Mutant(
        "an unknown user has another salt each time",
        "proxy/security/scram_credentials.py",
        '        seed = hmac.digest(self._secret, f"{mechanism}:{user}"'
        '.encode(errors="replace"), "sha512")\n',
        "        seed = secrets.token_bytes(64)\n",
        (f"{_LOGINS}::test_an_unknown_user_has_the_same_salt_each_time",),
    ),
    Mutant(
        "a removed user's connections stay open",
        "proxy/kafka/access/secure_listener.py",
        "                if user in users:\n",
        "                if not user:\n",
        (f"{_LOGINS}::test_a_removed_user_loses_the_connection",),
    ),
    Mutant(
        "the template of a Produce ignores a revocation",
        _PRODUCE,
        "        if guard is not None and guard.version is not self._guard_version:\n",
        "        if guard is not None and guard is None:\n",
        (f"{_IN_FORCE}::test_the_template_of_the_last_produce_obeys_a_revocation",),
    ),
    Mutant(
        "a Produce is not checked",
        _PRODUCE,
        "            parts = self._allowed(self.guard, reply, request)\n",
        "            pass\n",
        (f"{_IN_FORCE}::test_only_who_may_write_produces",),
    ),
    Mutant(
        "a batch under the PID of another client's name is not checked",
        _PRODUCE,
        "        if self.guard is not None and not self.may_send("
        "self.guard, reply.connection, header):\n",
        "        if self.guard is not None and header.producer_id == 0:\n",
        (f"{_OF_NAMES}::test_a_batch_under_the_pid_of_a_name",),
    ),
    Mutant(
        "the same where a connection repeats its requests",
        _PRODUCE,
        "not self._api.may_send(guard, slot.connection, header):\n",
        "header.producer_id == 0:\n",
        (f"{_OF_NAMES}::test_a_connection_that_repeats_its_requests",),
    ),
    Mutant(
        "a name that a connection has used outlives a revocation",
        _APIS,
        "        if secured.rights_version is self._authorizer.version and (\n"
        "            transactional_id in secured.may_write_as\n",
        "        if secured.rights_version is not None and (\n"
        "            transactional_id in secured.may_write_as\n",
        (f"{_OF_NAMES}::test_what_a_connection_has_noted_ends_with_a_change",),
    ),
    Mutant(
        "an append over HTTP under the PID of another client's name is not checked",
        "proxy/http/record_routes.py",
        "            require_name(service.name_of(batch.identity))\n",
        "",
        (f"{_OF_NAMES}::test_an_append_over_http",),
    ),
    Mutant(
        "the same for a small append",
        "proxy/http/access/request_access.py",
        "name is None or authorizer is None or authorizer.allows(self.caller, name_right(name))",
        "name is None or authorizer is None or authorizer is not None",
        (f"{_OF_NAMES}::test_an_append_over_http",),
    ),
    Mutant(
        "a server's own file becomes the common one, whatever the others have",
        _COMMON,
        "        if mine is not None and same is None and mine != theirs:\n"
        "            self._put_aside(mine)\n        return theirs\n",
        "        if mine is not None and same is None and mine != theirs:\n"
        "            return mine\n        return theirs\n",
        (f"{_IN_COMMON}::test_a_server_with_a_file_of_its_own",),
    ),
    Mutant(
        "an entry that another server has removed comes back with a change here",
        _COMMON,
        "if after[each] != before.get(each)}",
        "}",
        (f"{_IN_COMMON}::test_changes_at_both_servers_are_made_together",),
    ),
    Mutant(
        "an entry that was removed here comes back with a change of another server",
        _COMMON,
        "        for gone in before.keys() - after.keys():\n",
        "        for gone in before.keys() - before.keys():\n",
        (f"{_IN_COMMON}::test_changes_at_both_servers_are_made_together",),
    ),
    Mutant(
        "a missing file empties those of all servers",
        _COMMON,
        "        is_edited = mine is not None and ",
        '        mine = mine or b""\n        is_edited = mine is not None and ',
        (f"{_IN_COMMON}::test_a_file_that_is_missing_is_restored",),
    ),
    Mutant(
        "a broken file is passed on",
        _COMMON,
        "            changed = self._parse_own(mine)\n"
        "            return mine if theirs == same else ",
        "            changed = frozenset() if theirs == same else self._parse_own(mine)\n"
        "            return mine if theirs == same else ",
        (f"{_IN_COMMON}::test_a_broken_file_is_passed_on_by_nobody",),
    ),
    Mutant(
        "a broken file of the coordinator is accepted",
        _COMMON,
        "            if not is_edited:\n                raise\n",
        "",
        (f"{_IN_COMMON}::test_a_broken_file_is_passed_on_by_nobody",),
    ),
    Mutant(
        "a transactional client writes to the coordinator's topic",
        "proxy/kafka/forwarded/forwarded_apis.py",
        "        if partition.topic == SERVED_TOPIC:\n",
        "        if not partition.topic:\n",
        ("tests/kafka_backend/test_own_topic.py",),
    ),
    Mutant(
        "a client reads the coordinator's topic",
        "proxy/kafka/forwarded/split_requests.py",
        "    return NO_LEADER if topic == SERVED_TOPIC else view.leader(topic, partition)\n",
        "    return view.leader(topic, partition)\n",
        ("tests/kafka_backend/test_own_topic.py",),
    ),
    Mutant(
        "what was being taken at a crash counts as an operator's change",
        _COMMON,
        "        if mine is not None and mine == self._read(self._incoming):\n"
        "            same = mine\n",
        "",
        (f"{_IN_COMMON}::test_a_crash_while_the_coordinator_s_file_is_taken",),
    ),
    Mutant(
        "an edit between two reads is lost",
        _COMMON,
        "        if self._file.content() != mine:\n            return False\n",
        "",
        (f"{_IN_COMMON}::test_an_edit_while_the_file_is_made_the_same_is_not_lost",),
    ),
    Mutant(
        "a lost answer makes a change twice",
        _COMMON,
        " or self._common.read(self._name) == content:",
        ":",
        (f"{_IN_COMMON}::test_the_outcome_of_a_lost_answer_is_found_out",),
    ),
    Mutant(
        "a name is forgotten with the lease of its PID at this server",
        "pidlease/engine/leases/leases.py",
        "            if not self.keeps_fences:\n                self.unbind(pid)\n",
        "            self.bound_names.pop(pid, None)\n            if not self.keeps_fences:\n"
        "                self.unbind(pid)\n",
        ("tests/unit/engine/test_partition_moves.py::test_a_fence_outlives_the_lease_here",),
    ),
    Mutant(
        "a change by a request overlooks what other servers have changed",
        _COMMON,
        "                before = self._sync()\n",
        "                before = self._file.content()\n",
        (f"{_IN_COMMON}::test_a_change_by_a_request_has_what_others_have_changed",),
    ),
    Mutant(
        "a change of a common file replaces what another server has put just before",
        "pidlease/coordination/journal/journal_files.py",
        "            self._journal.put([row], [row._replace(fields=known)])\n",
        "            self._journal.put([row])\n",
        (f"{_IN_COMMON}::test_a_change_by_a_request_has_what_others_have_changed",),
    ),
    Mutant(
        "refused items of a request are passed on",
        _APIS,
        "            if code is None:\n                kept.append(item)\n",
        "            kept.append(item)\n            if code is None:\n                pass\n",
        (f"{_MATRIX}::test_a_part_is_refused_and_the_rest_is_passed_on",),
    ),
    Mutant(
        "topics are found by their ids without a right",
        _APIS,
        "            named = dataclasses.replace(item, name=found.name)\n",
        "            return None\n",
        (f"{_IN_FORCE}::test_metadata_shows_only_what_a_client_may_see",),
    ),
    Mutant(
        "an allowance wins over a denial",
        _ACLS,
        "            return False\n        return any(\n",
        "            pass\n        return any(\n",
        (f"{_RULES}::test_decisions",),
    ),
    Mutant(
        "a literal name is a prefix",
        _ACLS,
        "            if acl.pattern is Pattern.LITERAL:\n",
        "            if acl.pattern is None:\n",
        (f"{_RULES}::test_decisions",),
    ),
    Mutant(
        "names of any length are remembered",
        "proxy/security/authorizer.py",
        "            if len(right.name) > NOTED_NAME_MAX:\n",
        "            if not right:\n",
        (f"{_RULES}::test_long_names_are_not_remembered",),
    ),
    Mutant(
        "a web page of any origin changes what it can without asking",
        "proxy/http/foreign_pages.py",
        "            return site in _OWN_SITES\n",
        "            return True\n",
        ("tests/http_api/test_cors.py",),
    ),
    Mutant(
        "shared caches keep what a client with a login has read",
        "proxy/http/streams/stream_routes.py",
        "_CACHED if CALLER.get() is None else _CACHED_BY_CLIENT",
        "_CACHED",
        ("tests/secure/test_http_access.py",),
    ),
    Mutant(
        "a name is shown to all who know its PID",
        "proxy/http/lease_routes.py",
        "name=shown_name(lease.name)",
        'name=lease.name or ""',
        ("tests/secure/test_http_access.py",),
    ),
    Mutant(
        "the server's own ids are for super users",
        "proxy/security/authorizer.py",
        "        if kind is ResourceKind.TRANSACTIONAL_ID and name.startswith(OWN_PREFIX):\n",
        "        if not kind:\n",
        (f"{_RULES}::test_super_users_and_the_server_s_own_ids",),
    ),
    Mutant(
        "a removed authority is trusted by resumed sessions",
        "proxy/security/server_certificates.py",
        "        connection.context = self._newest\n",
        "        pass\n",
        (f"{_TLS}::test_a_removed_authority_is_no_longer_trusted",),
    ),
    Mutant(
        "a mapping rule matches a part of a name",
        "proxy/security/certificate_names.py",
        "    found = rule.pattern.fullmatch(name)\n",
        "    found = rule.pattern.search(name)\n",
        (f"{_TLS}::test_mapping_rules",),
    ),
    Mutant(
        "a token's issuer is not checked",
        "proxy/security/token_validator.py",
        "                issuer=config.issuer, leeway=",
        "                leeway=",
        (f"{_TOKENS}::test_invalid_tokens",),
    ),
    Mutant(
        "an HTTP route without a row is served",
        _HTTP,
        "        if found is None or (known.sender",
        "        if (found is None and not known) or (known.sender",
        (f"{_HTTP_TESTS}::test_a_route_without_a_row_is_refused_even_to_who_may_do_all",),
    ),
    Mutant(
        "any certificate of the authority is one of a server",
        _REQUEST,
        "        if user not in self._servers or user is None:\n",
        "        if user is None:\n",
        (f"{_SENT_ON}::test_only_a_server_sends_marked_requests",),
    ),
    Mutant(
        "a header that names a client counts without the mark",
        _REQUEST,
        "_OF_SERVERS: Final = (FORWARDED.encode(), CLIENT.encode())\n",
        "_OF_SERVERS: Final = (FORWARDED.encode(),)\n",
        (f"{_SENT_ON}::test_only_a_server_sends_marked_requests",),
    ),
    Mutant(
        "a public path is served to all that pass for a server",
        _HTTP,
        "found[0].public and not self._access.is_of_server(scope):\n",
        "found[0].public:\n",
        (f"{_SENT_ON}::test_only_a_server_sends_marked_requests",),
    ),
    Mutant(
        "a server may do everything for itself",
        _HTTP,
        "(known.sender is Sender.SERVER and not found[0].of_servers):\n",
        "(not found[0].methods):\n",
        (f"{_SENT_ON}::test_what_a_server_asks_for_itself",),
    ),
    Mutant(
        "a request that is sent on needs no right of its client",
        _REQUEST,
        "        for_itself = known.sender is Sender.SERVER\n",
        "        for_itself = known.sender is not Sender.CLIENT\n",
        (f"{_SENT_ON}::test_each_right_of_the_client_is_needed",),
    ),
    Mutant(
        "a server asks with the rights of a client",
        _REQUEST,
        "        for_itself = known.sender is Sender.SERVER\n",
        "        for_itself = False\n",
        (f"{_SENT_ON}::test_what_a_server_asks_for_itself",),
    ),
    Mutant(
        "of two clients that a request names, the first one counts",
        _REQUEST,
        "        client = client_of(named[0]) if len(named) == 1 else None\n",
        "        client = client_of(named[0])\n",
        (f"{_SENT_ON}::test_a_header_that_names_no_client",),
    ),
    Mutant(
        "a small append that is sent on is counted again",
        _REQUEST,
        " or found[0].public or self.is_of_server(scope):\n",
        " or found[0].public:\n",
        (f"{_SENT_ON}::test_an_append_that_is_sent_on_is_not_admitted_in_the_protocol",),
    ),
    Mutant(
        "the owner counts the request of a client again",
        _METER,
        "        buckets = None if self._sent_on else self.buckets()\n",
        "        buckets = self.buckets()\n",
        (f"{_SENT_ON}::test_quotas_count_the_client_once",),
    ),
    Mutant(
        "the owner counts the body of a client again",
        _METER,
        '        if self._traffic != "produced" or self._sent_on:\n',
        '        if self._traffic != "produced":\n',
        (f"{_SENT_ON}::test_quotas_count_the_client_once",),
    ),
    Mutant(
        "the owner counts a read again",
        _METER,
        '        if self._traffic != "fetched" or self._sent_on:\n',
        '        if self._traffic != "fetched":\n',
        (f"{_SENT_ON}::test_quotas_count_the_client_once",),
    ),
    Mutant(
        "both servers count a batch that the owner makes",
        "proxy/http/record_routes.py",
        "            held.more(len(batch.data))\n",
        "            held.more(len(batch.data))\n"
        "            count_batch(len(body), len(batch.data))\n",
        (f"{_SENT_ON}::test_a_batch_that_the_owner_makes_is_counted_there_alone",),
    ),
    Mutant(
        "a client of the authority poses as a server",
        _MEMBERS,
        "            if mapper.user(name) not in members.users:\n",
        "            if mapper.user(name) is None:\n",
        (f"{_CERTIFICATES}::test_a_member_that_is_not_accepted_is_silent_and_gets_no_request",),
    ),
    Mutant(
        "a server starts with a certificate that no other one accepts",
        _MEMBERS,
        "        _connect_to_self(listener, context, members.host)\n",
        "        pass\n",
        (f"{_CERTIFICATES}::test_a_certificate_that_no_other_server_would_accept_is_refused",),
    ),
    Mutant(
        "the other servers are reached with the certificates of the start",
        "proxy/security/server_certificates.py",
        "        self._renew()\n        _log",
        "        make_context(self._files)\n        _log",
        (f"{_CERTIFICATES}::test_new_files_count_for_new_connections",),
    ),
    Mutant(
        "records go in clear to a member without TLS",
        _OWNERS,
        '    if member.http_url.startswith("https:") == (tls is not None):\n',
        '    if member.http_url.startswith("http"):\n',
        (f"{_CERTIFICATES}::test_of_servers_with_and_without_tls_none_sends_to_the_other",),
    ),
    Mutant(
        "a question has the client, who may have no right to it at the owner",
        _OWNERS,
        "json=wanted.body(), headers=marked_headers()\n",
        "json=wanted.body(), headers=sent_on_headers()\n",
        ("tests/http_api/test_sent_on.py",),
    ),
    Mutant(
        "a client gets 401 because its server is unknown to the owner",
        _OWNERS,
        "    if found.status_code == HTTPStatus.UNAUTHORIZED:\n",
        "    if not found.status_code:\n",
        (f"{_CERTIFICATES}::test_a_member_that_knows_no_such_server_is_silent",),
    ),
    Mutant(
        "a member that knows no such server counts as one that answers",
        _PINGS,
        "                if found.status == HTTPStatus.UNAUTHORIZED:\n",
        "                if not found.status:\n",
        (f"{_CERTIFICATES}::test_a_member_that_knows_no_such_server_is_silent",),
    ),
    Mutant(
        "a member that refuses the certificate counts as one that has ended",
        _PINGS,
        "        if isinstance(exc, ssl.SSLError):\n",
        "        if exc is self:\n",
        (f"{_CERTIFICATES}::test_a_member_that_is_not_accepted_is_silent_and_gets_no_request",),
    ),
    Mutant(
        "a stop waits for clients that do not end TLS",
        "proxy/http/http_protocol.py",
        "            self.loop.call_later(_TLS_END_SECONDS, self._end_tls)\n",
        "            pass\n",
        ("tests/secure/test_tls_stop.py",),
    ),
    Mutant(
        "a stop cuts a response by TLS that its client still reads",
        "proxy/http/http_protocol.py",
        "        if self.transport.get_write_buffer_size() == 0:\n",
        "        if self.transport.is_closing():\n",
        ("tests/secure/test_tls_stop.py",),
    ),
    Mutant(
        "HTTP clients give up because Kafka's ACLs are not read yet",
        _HTTP,
        "        if authorizer is not None and authorizer.is_undecided(admission.caller):\n",
        "        if authorizer is not None and not authorizer.acls and not admission.caller:\n",
        (f"{_HTTP_TESTS}::test_until_kafka_s_acls_are_read_a_client_may_try_again",),
    ),
    Mutant(
        "an HTTP password counts after its user was removed",
        "proxy/security/password_check.py",
        "        return self._right.get(key) == credential\n",
        "        return key in self._right\n",
        (f"{_HTTP_TESTS}::test_a_removed_user_is_refused_at_once",),
    ),
    Mutant(
        "a client that has lost its right gets the response to its append",
        _IMMEDIATE,
        "        if admitted is not None and admitted.is_revoked():\n",
        "        if admitted is not None and not admitted:\n",
        (f"{_IMMEDIATE_TESTS}::test_a_client_that_loses_its_right_meanwhile",),
    ),
    Mutant(
        "a small append counts for no quota",
        _IMMEDIATE,
        "                admitted.count(size)\n",
        "                pass\n",
        (f"{_IMMEDIATE_TESTS}::test_quotas_count_the_same",),
    ),
    Mutant(
        "a small append may owe any number of bytes",
        "proxy/http/access/request_meter.py",
        " or not buckets.produced.would_overdraw(size, now)\n",
        " or True\n",
        (f"{_IMMEDIATE_TESTS}::test_an_append_that_would_owe_too_much",),
    ),
    Mutant(
        "requests go between the steps of a client's login",
        f"{_CLIENT}/broker_connection.py",
        "            self._waiting.append((request, parts, seconds))\n            return\n",
        "            pass\n",
        (_RENEWAL,),
    ),
    Mutant(
        "batches are handed to a connection that logs in again",
        f"{_CLIENT}/broker_connection.py",
        "        self._waiting = waiting\n        self.paused = True\n",
        "        self._waiting = waiting\n",
        (_RENEWAL,),
    ),
    Mutant(
        "our clients do not log in again",
        f"{_CLIENT}/bootstrap.py",
        "                if lifetime_s:\n",
        "                if lifetime_s < 0:\n",
        (_RENEWAL,),
    ),
    Mutant(
        "a token that Kafka refuses by a message counts as accepted",
        f"{_CLIENT}/bootstrap.py",
        "            if config.mechanism == OAUTHBEARER and payload:\n",
        "            if not payload:\n",
        (_RENEWAL,),
    ),
    Mutant(
        "the file of the ACLs counts beside those of Kafka",
        "proxy/security/security.py",
        "        if authorizer is None or self.kafka_acls is not None:\n",
        "        if authorizer is None:\n",
        (f"{_OF_KAFKA}::test_the_file_of_acls_counts_for_nothing",),
        server=True,
    ),
    Mutant(
        "the addition of an ACL to Kafka is confirmed before it is in force",
        _KAFKA_ACLS_API,
        "        if created:\n",
        "        if not created:\n",
        (f"{_OF_KAFKA}::test_a_change_is_in_force_when_its_response_comes",),
        server=True,
    ),
    Mutant(
        "the deletion of an ACL of Kafka is confirmed before it is in force",
        _KAFKA_ACLS_API,
        "        if gone:\n",
        "        if not gone:\n",
        (f"{_OF_KAFKA}::test_a_change_is_in_force_when_its_response_comes",),
        server=True,
    ),
    Mutant(
        "a refusal of Kafka to change ACLs counts as success",
        _KAFKA_ACLS_API,
        "    if result.error_code is ErrorCode.none:\n",
        "    if result is not None:\n",
        (f"{_OF_KAFKA}::test_what_kafka_refuses_is_passed_on",),
        server=True,
    ),
    Mutant(
        "the ACLs of Kafka are dropped while it is away",
        _KAFKA_ACLS,
        "                failed = True\n",
        "                failed = self._authorizer.replace(()) is None\n",
        (f"{_OF_KAFKA}::test_while_kafka_is_away_the_last_rules_stay",),
        server=True,
    ),
    Mutant(
        "the ACLs of Kafka are read once",
        _KAFKA_ACLS,
        "        if self._reading is None:\n",
        "        if self._reading is not None:\n",
        (f"{_OF_KAFKA}::test_a_rule_made_in_kafka_takes_effect",),
        server=True,
    ),
    Mutant(
        "a Kafka that does not return its ACLs has none",
        "pidlease/kafka/client/acl_requests.py",
        "    code = int(response.error_code.value)\n",
        "    code = 0\n",
        (
            f"{_OF_KAFKA}::test_a_start_without_an_authorizer_is_refused",
            f"{_OF_KAFKA}::test_a_start_without_the_right_to_read_them_is_refused",
        ),
        server=True,
    ),
    Mutant(
        "an ACL of Kafka with an unknown pattern is left out",
        _KAFKA_ACLS,
        "        if pattern not in _PATTERNS or permission not in _PERMISSIONS:\n",
        "        if permission not in _PERMISSIONS:\n",
        (f"{_RULES}::test_an_acl_of_a_newer_kafka",),
    ),
    Mutant(
        "before the ACLs are known all may do what no ACL is about",
        "proxy/security/authorizer.py",
        "        if self._index is None:\n            return False\n",
        "        if self._index is None:\n            return self._allow_if_none\n",
        (f"{_RULES}::test_before_the_first_entries_only_super_users_may_do_something",),
    ),
    Mutant(
        "an address counts only as Python writes it",
        _ACLS,
        "            self.host in (host, ANY_NAME) or _same_address(self.host, host)\n",
        "            self.host in (host, ANY_NAME)\n",
        (f"{_RULES}::test_an_address_counts_however_it_is_written",),
    ),
    Mutant(
        "a prefix that is the whole name counts for nothing",
        _ACLS,
        "            if length <= len(name):\n",
        "            if length < len(name):\n",
        (f"{_RULES}::test_decisions",),
    ),
    Mutant(
        "an allowance for names with the prefix * is one for all names",
        _ACLS,
        "        return allow.name.startswith(deny.name)"
        " and not (literal and allow.name == ANY_NAME)\n",
        "        return allow.name.startswith(deny.name) and allow.name != ANY_NAME\n",
        (f"{_RULES}::test_decisions_about_any_topic",),
    ),
    Mutant(
        "a list of all topics by librdkafka is malformed",
        "pidlease/kafka/codec/messages.py",
        "    if header.api_key == API_METADATA and request.topics is None"
        " and request.__flexible__:\n",
        "    if header.api_key < 0:\n",
        (f"{_IN_FORCE}::test_librdkafka_s_request_for_all_topics_is_answered",),
    ),
    Mutant(
        "a client does not learn what is wrong with its certificate",
        "proxy/security/alerted_handshake.py",
        '                raise ssl.SSLWantReadError("the alert is not sent yet") from error\n',
        "                raise\n",
        (f"{_TLS}::test_a_client_learns_what_is_wrong_with_its_certificate",),
    ),
    Mutant(
        "a client without TLS gets an alert",
        "proxy/security/alerted_handshake.py",
        "            if error.reason == _NO_CERTIFICATE"
        " or isinstance(error, ssl.SSLCertVerificationError):\n",
        "            if error.reason:\n",
        (f"{_TLS}::test_a_client_without_tls_gets_no_byte",),
    ),
    Mutant(
        "one failure to accept a connection is the last",
        "proxy/security/tls_acceptor.py",
        "                await asyncio.sleep(_PAUSE_SECONDS)\n                continue\n",
        "                return\n",
        (f"{_TLS}::test_connections_are_accepted_when_there_are_files_again",),
    ),
)
