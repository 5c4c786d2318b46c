//! What a body may say and what it may not: stories in both dialects, and laws over bodies of any shape.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::route::{Image, Piece};

fn read(endpoint: Endpoint, body: &str) -> Result<Ask, BadAsk> {
    Ask::read(endpoint, body.as_bytes(), &Bounds::default())
}

fn chat(body: &str) -> Ask {
    read(Endpoint::ChatCompletions, body).unwrap()
}

fn texts(ask: &Ask) -> Vec<&str> {
    ask.prompt.texts().collect()
}

const HELLO: &str = r#""messages":[{"role":"user","content":"hello"}]"#;

/// A chat body with `more` members.
fn chat_with(more: &str) -> String {
    format!(r#"{{"model":"gpt-4o",{HELLO},{more}}}"#)
}

/// An Anthropic body with `more` members.
fn message_with(more: &str) -> String {
    format!(r#"{{"model":"claude-haiku-4-5","max_tokens":16,{HELLO},{more}}}"#)
}

/// What every refusal must say: a code, a member, and words that name the member.
fn refused(endpoint: Endpoint, body: &str, code: &str, param: &str) {
    let bad = read(endpoint, body).expect_err(body);
    assert_eq!((bad.code, bad.param.as_deref(), bad.status_hint), (code, Some(param), 400), "{body}: {bad}");
    assert!(bad.message.contains(param), "{bad}");
}

#[test]
fn a_chat_is_read() {
    let ask = chat(
        r#"{"model":"gpt-4o","stream":true,"n":3,"max_tokens":50,"user":"ada","stream_options":{"include_usage":true},
        "messages":[{"role":"system","content":"Be brief."},{"role":"user","name":"Ada","content":[{"type":"text","text":"Hi\nthere"}]}]}"#,
    );
    assert_eq!((ask.model.as_str(), ask.stream, ask.choices), ("gpt-4o", true, 3));
    assert_eq!((ask.output_ceiling, ask.include_usage), (Some(50), Some(true)));
    assert_eq!(ask.user.as_deref(), Some("ada"));
    assert_eq!((ask.prompt.messages, ask.prompt.names), (2, 1));
    assert_eq!(texts(&ask), ["Be brief.", "Ada", "Hi\nthere"]);
}

#[test]
fn what_is_not_said_is_not_made_up() {
    let ask = chat(&chat_with(
        r#""n":null,"stream":null,"max_tokens":null,"user":null,"stream_options":null,"tools":null"#,
    ));
    assert_eq!((ask.stream, ask.choices, ask.output_ceiling, ask.include_usage), (false, 1, None, None));
    assert_eq!(ask.user, None);
    assert_eq!(chat(&chat_with(r#""user":"""#)).user, None);
}

#[test]
fn of_two_ceilings_the_larger_counts() {
    assert_eq!(chat(&chat_with(r#""max_tokens":10,"max_completion_tokens":20"#)).output_ceiling, Some(20));
    assert_eq!(chat(&chat_with(r#""max_tokens":20,"max_completion_tokens":10"#)).output_ceiling, Some(20));
    assert_eq!(chat(&chat_with(r#""max_completion_tokens":10"#)).output_ceiling, Some(10));
    assert_eq!(chat(&chat_with(r#""max_tokens":null,"max_completion_tokens":10"#)).output_ceiling, Some(10));
}

#[test]
fn a_limit_by_user_is_not_dodged_by_the_newer_name() {
    assert_eq!(chat(&chat_with(r#""safety_identifier":"b""#)).user.as_deref(), Some("b"));
    assert_eq!(chat(&chat_with(r#""user":"a","safety_identifier":"b""#)).user.as_deref(), Some("a"));
}

#[test]
fn amounts_that_cannot_be_are_refused_and_say_why() {
    for name in ["max_tokens", "max_completion_tokens"] {
        for (value, code) in [
            ("0", "integer_below_min_value"),
            ("-1", "integer_below_min_value"),
            ("-9223372036854775808", "integer_below_min_value"),
            ("4294967296", "integer_above_max_value"),
            ("9223372036854775808", "integer_above_max_value"),
            ("18446744073709551616", "invalid_type"),
            ("\"5\"", "invalid_type"),
            ("5.0", "invalid_type"),
            ("5.5", "invalid_type"),
            ("1e3", "invalid_type"),
            ("true", "invalid_type"),
            ("[5]", "invalid_type"),
            ("{}", "invalid_type"),
        ] {
            refused(Endpoint::ChatCompletions, &chat_with(&format!("\"{name}\":{value}")), code, name);
            let body = format!(r#"{{"model":"claude","max_tokens":{value},{HELLO}}}"#);
            refused(Endpoint::Messages, &body, code, "max_tokens");
        }
    }
    for (n, code) in
        [("0", "integer_below_min_value"), ("129", "integer_above_max_value"), ("\"2\"", "invalid_type")]
    {
        refused(Endpoint::ChatCompletions, &chat_with(&format!("\"n\":{n}")), code, "n");
    }
    assert_eq!(chat(&chat_with(r#""n":128,"max_tokens":4294967295"#)).choices, 128);
    let bad = read(Endpoint::ChatCompletions, &chat_with(r#""max_tokens":0"#)).unwrap_err();
    assert_eq!(bad.to_string(), "`max_tokens` must be at least 1, but is 0.");
    let bad = read(Endpoint::ChatCompletions, &chat_with(r#""max_tokens":"5""#)).unwrap_err();
    assert_eq!(bad.to_string(), "`max_tokens` must be an integer, but is a string.");
}

#[test]
fn an_amount_given_twice_is_refused() {
    let bad = read(Endpoint::ChatCompletions, &chat_with(r#""max_tokens":1,"max_tokens":1000"#)).unwrap_err();
    assert_eq!((bad.code, bad.param.as_deref(), bad.status_hint), ("duplicate_key", Some("max_tokens"), 400));
    let bad = read(Endpoint::ChatCompletions, r#"{"model":"a","model":"b","messages":[]}"#).unwrap_err();
    assert_eq!((bad.code, bad.param.as_deref()), ("duplicate_key", Some("model")));
}

#[test]
fn a_body_that_is_no_body_is_refused_and_says_where() {
    for body in ["", "{", "[]", "\u{feff}{}", "{}x", r#"{"a":1e309}"#, r#"{"a":"\ud800"}"#, "\"text\""] {
        let bad = read(Endpoint::ChatCompletions, body).unwrap_err();
        assert_eq!((bad.code, bad.param, bad.status_hint), ("invalid_json", None, 400), "{body}");
    }
    let deep = format!(r#"{{"model":{}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(read(Endpoint::ChatCompletions, &deep).unwrap_err().code, "json_too_deep");
    let wide: Vec<String> = (0..1_000_000).map(|at| format!("\"{at}\":0")).collect();
    let bad = read(Endpoint::ChatCompletions, &format!("{{{}}}", wide.join(","))).unwrap_err();
    assert_eq!((bad.code, bad.status_hint), ("request_too_large", 413));
    let long = format!(r#"{{"input":[{}0]}}"#, "0,".repeat(1_000_000));
    assert_eq!(read(Endpoint::Embeddings, &long).unwrap_err().status_hint, 413);
    let bounds = Bounds { bytes: 10, ..Bounds::default() };
    let bad = Ask::read(Endpoint::Embeddings, br#"{"model":"m","input":"i"}"#, &bounds).unwrap_err();
    assert_eq!((bad.code, bad.status_hint), ("request_too_large", 413));
    let bad = read(Endpoint::ChatCompletions, "{\n \"model\": x}").unwrap_err();
    assert!(bad.message.contains("line 2, column 11"), "{bad}");
}

#[test]
fn a_model_must_be_named() {
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::CountTokens] {
        refused(endpoint, &format!("{{{HELLO}}}"), "missing_required_parameter", "model");
        refused(endpoint, &format!(r#"{{"model":null,{HELLO}}}"#), "missing_required_parameter", "model");
        refused(endpoint, &format!(r#"{{"model":"",{HELLO}}}"#), "empty_string", "model");
        refused(endpoint, &format!(r#"{{"model":7,{HELLO}}}"#), "invalid_type", "model");
        refused(endpoint, &format!(r#"{{"model":["gpt-4o"],{HELLO}}}"#), "invalid_type", "model");
        let long = "m".repeat(257);
        refused(endpoint, &format!(r#"{{"model":"{long}",{HELLO}}}"#), "string_above_max_length", "model");
    }
}

#[test]
fn messages_must_be_messages() {
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::CountTokens] {
        for (messages, code, param) in [
            ("null", "missing_required_parameter", "messages"),
            ("[]", "empty_array", "messages"),
            ("{}", "invalid_type", "messages"),
            ("\"hello\"", "invalid_type", "messages"),
            ("[null]", "invalid_type", "messages[0]"),
            ("[\"hello\"]", "invalid_type", "messages[0]"),
            (r#"[{"content":"x"}]"#, "missing_required_parameter", "messages[0].role"),
            (r#"[{"role":1,"content":"x"}]"#, "invalid_type", "messages[0].role"),
            (r#"[{"role":"user","content":7}]"#, "invalid_type", "messages[0].content"),
            (r#"[{"role":"user","content":{"type":"text"}}]"#, "invalid_type", "messages[0].content"),
            (
                r#"[{"role":"user","content":"x"},{"role":"user","content":["x"]}]"#,
                "invalid_type",
                "messages[1].content[0]",
            ),
            (
                r#"[{"role":"user","content":[{"text":"x"}]}]"#,
                "missing_required_parameter",
                "messages[0].content[0].type",
            ),
            (
                r#"[{"role":"user","content":[{"type":"text"}]}]"#,
                "missing_required_parameter",
                "messages[0].content[0].text",
            ),
            (
                r#"[{"role":"user","content":[{"type":"text","text":[]}]}]"#,
                "invalid_type",
                "messages[0].content[0].text",
            ),
        ] {
            let body = format!(r#"{{"model":"m","max_tokens":9,"messages":{messages}}}"#);
            refused(endpoint, &body, code, param);
        }
        refused(endpoint, r#"{"model":"m","max_tokens":9}"#, "missing_required_parameter", "messages");
    }
}

#[test]
fn other_members_of_a_wrong_type_are_refused() {
    for (more, param) in [
        (r#""stream":"true""#, "stream"),
        (r#""stream":1"#, "stream"),
        (r#""user":7"#, "user"),
        (r#""safety_identifier":{}"#, "safety_identifier"),
        (r#""stream_options":[]"#, "stream_options"),
        (r#""stream_options":{"include_usage":1}"#, "stream_options.include_usage"),
        (r#""tools":{}"#, "tools"),
        (r#""tools":["x"]"#, "tools[0]"),
        (r#""functions":[[]]"#, "functions[0]"),
        (r#""response_format":"json""#, "response_format"),
    ] {
        refused(Endpoint::ChatCompletions, &chat_with(more), "invalid_type", param);
    }
    for (more, param) in [
        (r#""stream":"yes""#, "stream"),
        (r#""system":7"#, "system"),
        (r#""system":["x"]"#, "system[0]"),
        (r#""metadata":"x""#, "metadata"),
        (r#""metadata":{"user_id":7}"#, "metadata.user_id"),
        (r#""tools":[7]"#, "tools[0]"),
    ] {
        refused(Endpoint::Messages, &message_with(more), "invalid_type", param);
    }
    let long = "u".repeat(513);
    refused(
        Endpoint::ChatCompletions,
        &chat_with(&format!(r#""user":"{long}""#)),
        "string_above_max_length",
        "user",
    );
    let metadata = format!(r#""metadata":{{"user_id":"{long}"}}"#);
    refused(Endpoint::Messages, &message_with(&metadata), "string_above_max_length", "metadata.user_id");
}

#[test]
fn nothing_that_a_model_reads_is_free() {
    let ask = chat(&chat_with(
        r#""tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}],
        "functions":[{"name":"old"}],
        "response_format":{"type":"json_schema","json_schema":{"name":"s"}},
        "prediction":{"type":"content","content":"guess"}"#,
    ));
    assert_eq!(ask.prompt.tools, 2);
    assert_eq!(
        texts(&ask),
        [
            "hello",
            r#"{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}"#,
            r#"{"name":"old"}"#,
            r#"{"type":"json_schema","json_schema":{"name":"s"}}"#,
            r#"{"type":"content","content":"guess"}"#,
        ]
    );
    let ask = chat(
        r#"{"model":"m","messages":[
            {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
            {"role":"oracle","content":"x","reasoning_content":"hmm","weight":-1.5},
            {"role":"user","content":[{"type":"hologram","cubes":[1,2]},{"type":"refusal","refusal":"no"}]}]}"#,
    );
    assert_eq!(
        texts(&ask),
        [
            r#"[{"id":"c1","type":"function","function":{"name":"f","arguments":"{"a":1}"}}]"#,
            "oracle",
            "x",
            "\"hmm\"",
            "-1.5e0",
            r#"{"type":"hologram","cubes":[1,2]}"#,
            "no"
        ]
    );
}

#[test]
fn files_are_held_as_facts_and_not_as_text() {
    let data = "A".repeat(4_000);
    let ask = chat(&format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[
            {{"type":"image_url","image_url":{{"url":"https://example.com/cat.png","detail":"low"}}}},
            {{"type":"image_url","image_url":"https://example.com/cat.png"}},
            {{"type":"input_audio","input_audio":{{"data":"{data}","format":"mp3"}}}},
            {{"type":"file","file":{{"file_data":"data:application/pdf;base64,{data}"}}}},
            {{"type":"file","file":{{"file_id":"file-1"}}}}]}}]}}"#
    ));
    assert_eq!(
        ask.prompt.pieces(),
        [
            Piece::Image(Image { size: None, detail: crate::route::Detail::Low }),
            Piece::Image(Image { size: None, detail: crate::route::Detail::Auto }),
            Piece::Audio { bytes: 3_000 },
            Piece::Document { bytes: Some(3_000) },
            Piece::Document { bytes: None },
        ]
    );
    for (part, param) in [
        (r#"{"type":"image_url"}"#, "messages[0].content[0].image_url"),
        (r#"{"type":"image_url","image_url":{}}"#, "messages[0].content[0].image_url.url"),
    ] {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
        refused(Endpoint::ChatCompletions, &body, "missing_required_parameter", param);
    }
    for (part, param) in [
        (r#"{"type":"image_url","image_url":7}"#, "messages[0].content[0].image_url"),
        (r#"{"type":"input_audio","input_audio":{"data":7}}"#, "messages[0].content[0].input_audio.data"),
        (r#"{"type":"file","file":{"file_data":7}}"#, "messages[0].content[0].file.file_data"),
    ] {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
        refused(Endpoint::ChatCompletions, &body, "invalid_type", param);
    }
}

#[test]
fn a_message_to_claude_is_read() {
    let ask = read(
        Endpoint::Messages,
        r#"{"model":"claude-haiku-4-5","max_tokens":1024,"stream":true,"metadata":{"user_id":"ada"},
        "system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
        "tools":[{"name":"weather","input_schema":{"type":"object"}},{"type":"web_search_20250305","name":"web_search"}],
        "messages":[
          {"role":"user","content":[{"type":"text","text":"Look"},{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}]},
          {"role":"assistant","content":[
            {"type":"thinking","thinking":"hmm","signature":"AAAA"},{"type":"thinking","thinking":"","signature":"AAAABBBB"},
            {"type":"redacted_thinking","data":"AAAA"},{"type":"tool_use","id":"t1","name":"weather","input":{"city":"Bonn"}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"rain"}]},
            {"type":"tool_result","tool_use_id":"t2","content":"sun"},{"type":"tool_result","tool_use_id":"t3"},
            {"type":"document","title":"T","context":"C","source":{"type":"text","media_type":"text/plain","data":"plain"}},
            {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAABBBB"}},
            {"type":"document","source":{"type":"content","content":[{"type":"text","text":"inner"}]}},
            {"type":"document","source":{"type":"url","url":"https://example.com/a.pdf"}},
            {"type":"oracle","x":1}]}]}"#,
    )
    .unwrap();
    assert_eq!((ask.stream, ask.choices, ask.output_ceiling), (true, 1, Some(1024)));
    assert_eq!((ask.user.as_deref(), ask.include_usage), (Some("ada"), None));
    assert_eq!((ask.prompt.messages, ask.prompt.tools, ask.prompt.provider_tools), (4, 1, 1));
    assert_eq!(
        texts(&ask),
        [
            "Be brief.",
            "Look",
            "hmm",
            "weather",
            r#"{"city":"Bonn"}"#,
            "rain",
            "sun",
            "T",
            "C",
            "plain",
            "inner",
            r#"{"type":"oracle","x":1}"#,
            r#"{"name":"weather","input_schema":{"type":"object"}}"#,
            r#"{"type":"web_search_20250305","name":"web_search"}"#,
        ]
    );
    let files: Vec<&Piece> =
        ask.prompt.pieces().iter().filter(|piece| !matches!(piece, Piece::Text(_))).collect();
    assert_eq!(
        files,
        [
            &Piece::Image(Image { size: None, detail: crate::route::Detail::Auto }),
            &Piece::Sealed { bytes: 6 },
            &Piece::Sealed { bytes: 3 },
            &Piece::Document { bytes: Some(6) },
            &Piece::Document { bytes: None },
        ]
    );
}

#[test]
fn claude_must_be_told_a_ceiling_unless_it_only_counts() {
    let body = format!(r#"{{"model":"claude-haiku-4-5",{HELLO}}}"#);
    refused(Endpoint::Messages, &body, "missing_required_parameter", "max_tokens");
    assert_eq!(read(Endpoint::CountTokens, &body).unwrap().output_ceiling, None);
    let body = r#"{"model":"claude","max_tokens":1,"messages":[{"role":"user"}]}"#;
    refused(Endpoint::Messages, body, "missing_required_parameter", "messages[0].content");
    let body = r#"{"model":"claude","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}"#;
    refused(
        Endpoint::Messages,
        body,
        "missing_required_parameter",
        "messages[0].content[0].content[0].source",
    );
}

#[test]
fn embeddings_are_counted_whatever_they_are_made_of() {
    let pieces = |input: &str| {
        read(
            Endpoint::Embeddings,
            &format!(r#"{{"model":"text-embedding-3-small","input":{input},"stream":true}}"#),
        )
        .map(|ask| {
            assert!(!ask.stream, "embeddings are not streamed");
            ask.prompt.pieces().to_vec()
        })
    };
    assert_eq!(pieces("\"hello\"").unwrap(), [Piece::Text(0..5)]);
    assert_eq!(pieces(r#"["hello","world"]"#).unwrap(), [Piece::Text(0..5), Piece::Text(5..10)]);
    assert_eq!(pieces("[1,2,3]").unwrap(), [Piece::TokenIds { count: 3 }]);
    assert_eq!(pieces("[[1,2],[3]]").unwrap(), [Piece::TokenIds { count: 2 }, Piece::TokenIds { count: 1 }]);
    for (input, code, param) in [
        ("null", "missing_required_parameter", "input"),
        ("\"\"", "empty_string", "input"),
        ("[]", "empty_array", "input"),
        ("7", "invalid_type", "input"),
        ("{}", "invalid_type", "input"),
        (r#"["a",""]"#, "empty_string", "input[1]"),
        ("[[1],[]]", "empty_array", "input[1]"),
        ("[1,\"a\"]", "invalid_type", "input[1]"),
        ("[\"a\",1]", "invalid_type", "input[1]"),
        ("[1,-1]", "invalid_type", "input[1]"),
        ("[1.5]", "invalid_type", "input[0]"),
        ("[[1],[2,\"a\"]]", "invalid_type", "input[1][1]"),
        ("[[1],2]", "invalid_type", "input[1]"),
        ("[null]", "invalid_type", "input[0]"),
        ("[{}]", "invalid_type", "input[0]"),
    ] {
        let bad = pieces(input).expect_err(input);
        assert_eq!((bad.code, bad.param.as_deref()), (code, Some(param)), "{input}: {bad}");
    }
}

#[test]
fn a_list_of_models_takes_no_body() {
    assert_eq!(read(Endpoint::Models, r#"{"model":"m"}"#).unwrap_err().code, "unexpected_body");
}

fn patched(body: &str, model: Option<&str>, ask_for_usage: bool) -> String {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let patched = chat(body).patched(&bytes, model, ask_for_usage);
    String::from_utf8(patched.to_vec()).unwrap()
}

#[test]
fn usage_is_asked_for_without_touching_another_byte() {
    let tail = r#" "model" : "gpt-4o","messages":[{"role":"user","content":"\u0068i"}] , "seed":1.50"#;
    for (before, after) in [
        (
            format!(r#"{{"stream":true,{tail}}}"#),
            format!(r#"{{"stream_options":{{"include_usage":true}},"stream":true,{tail}}}"#),
        ),
        (
            format!(r#"{{"stream":true,"stream_options": null ,{tail}}}"#),
            format!(r#"{{"stream":true,"stream_options": {{"include_usage":true}} ,{tail}}}"#),
        ),
        (
            format!(r#"{{"stream":true,"stream_options":{{ }},{tail}}}"#),
            format!(r#"{{"stream":true,"stream_options":{{"include_usage":true }},{tail}}}"#),
        ),
        (
            format!(r#"{{"stream":true,"stream_options":{{ "other":[1]}},{tail}}}"#),
            format!(r#"{{"stream":true,"stream_options":{{"include_usage":true, "other":[1]}},{tail}}}"#),
        ),
        (
            format!(r#"{{"stream":true,"stream_options":{{"include_usage": false }},{tail}}}"#),
            format!(r#"{{"stream":true,"stream_options":{{"include_usage": true }},{tail}}}"#),
        ),
        (
            format!(
                r#"{{"stream":true,"stream_options":{{"a":{{"include_usage":false}},"include_usage":null}},{tail}}}"#
            ),
            format!(
                r#"{{"stream":true,"stream_options":{{"a":{{"include_usage":false}},"include_usage":true}},{tail}}}"#
            ),
        ),
        (
            format!(r#"{{"stream":true,"stream_option\u0073":{{"include_usag\u0065":false}},{tail}}}"#),
            format!(r#"{{"stream":true,"stream_option\u0073":{{"include_usag\u0065":true}},{tail}}}"#),
        ),
    ] {
        assert_eq!(patched(&before, None, true), after);
    }
}

#[test]
fn a_model_is_renamed_without_touching_another_byte() {
    let body = format!(r#"{{ "stream":true, "model" :  "fast"  ,{HELLO}}}"#);
    assert_eq!(patched(&body, Some("gpt-4o"), false), body.replace("\"fast\"", "\"gpt-4o\""));
    assert_eq!(patched(&body, Some("a\"b\\\n"), false), body.replace("\"fast\"", r#""a\"b\\\n""#));
    let both = patched(&body, Some("gpt-4o"), true);
    assert_eq!(
        both,
        format!(
            r#"{{"stream_options":{{"include_usage":true}}, "stream":true, "model" :  "gpt-4o"  ,{HELLO}}}"#
        )
    );
}

#[test]
fn a_body_that_needs_no_patch_is_not_copied() {
    for (body, ask_for_usage) in [
        (format!(r#"{{"model":"m","stream":true,"stream_options":{{"include_usage":true}},{HELLO}}}"#), true),
        (format!(r#"{{"model":"m","stream":true,{HELLO}}}"#), false),
        // OpenAI refuses the option where nothing is streamed.
        (format!(r#"{{"model":"m","stream":false,{HELLO}}}"#), true),
        (format!(r#"{{"model":"m",{HELLO}}}"#), true),
    ] {
        let bytes = Bytes::from(body.clone());
        let same = chat(&body).patched(&bytes, Some("m"), ask_for_usage);
        assert_eq!(same.as_ptr(), bytes.as_ptr(), "{body}");
    }
    let body = message_with(r#""stream":true"#);
    let bytes = Bytes::from(body.clone());
    let same = read(Endpoint::Messages, &body).unwrap().patched(&bytes, None, true);
    assert_eq!(same.as_ptr(), bytes.as_ptr(), "Claude reports usage unasked");
}

#[test]
#[should_panic(expected = "the body it was read from")]
fn another_body_is_never_patched() {
    chat(&chat_with(r#""stream":true"#)).patched(&Bytes::from_static(b"{}"), Some("x"), false);
}

fn stream_options() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        Just(Some(json!({}))),
        Just(Some(json!({"other": {"include_usage": 1}}))),
        prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from)]
            .prop_map(|flag| Some(json!({"a": [1], "include_usage": flag, "z": null}))),
    ]
}

proptest! {
    #[test]
    fn a_patched_body_means_the_same_but_for_what_was_patched(
        model in ".{1,20}", renamed in ".{1,20}", content in ".*", options in stream_options(), pretty in any::<bool>(),
        usage in any::<bool>(),
    ) {
        let mut value = json!({"model": model, "stream": true, "messages": [{"role": "user", "content": content}]});
        if let Some(options) = options {
            value["stream_options"] = options;
        }
        let body = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let after: Value = serde_json::from_str(&patched(&body, Some(&renamed), usage)).unwrap();
        value["model"] = Value::from(renamed);
        if usage {
            match value.get_mut("stream_options") {
                Some(Value::Object(options)) => { options.insert("include_usage".to_owned(), Value::from(true)); }
                _ => value["stream_options"] = json!({"include_usage": true}),
            }
        }
        prop_assert_eq!(after, value);
    }

    #[test]
    fn no_body_makes_the_reader_panic(
        endpoint in prop::sample::select(Endpoint::ALL.to_vec()),
        name in prop::sample::select(vec!["model", "messages", "max_tokens", "input", "tools", "system", "stream_options", "metadata"]),
        value in r#"(\[|\]|\{|\}|,|:|"role"|"content"|"type"|"text"|"image"|null|1|true){0,12}"#,
    ) {
        let _ = read(endpoint, &format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"x"}}],"x":{value}}}"#));
        let _ = read(endpoint, &format!(r#"{{"{name}":{value}}}"#));
    }
}
