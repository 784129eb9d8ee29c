//! Which JSON Schemas a tool may have: those of which everything is checked, in bounded time.
//!
//! A keyword that nothing looks at would be a promise that nobody keeps, and a schema that comes from somebody else
//! must not keep this process busy for ever: it refers to nothing outside, never to itself, and is small when
//! every reference in it is followed. What is valid is left to the `jsonschema` crate.

use serde_json::{Map, Value};

/// Schemas in one schema when each reference counts as what it refers to, at most.
const MAX_SCHEMAS: usize = 4_096;

/// The checker of a schema.
pub(super) fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    if !schema.is_object() {
        return Err("it is no object".to_owned());
    }
    Extent { root: schema, counted: 0, within: Vec::new() }.measure(schema)?;
    jsonschema::validator_for(schema).map_err(|error| error.to_string())
}

/// What a keyword of JSON Schema 2020-12 (or of draft 7) holds.
enum Keyword {
    /// One schema, or a list of them.
    Schemas,
    /// Schemas by name.
    Named,
    /// Something else, which is checked or only describes.
    Plain,
    /// Nothing that is looked at here.
    Unknown,
}

fn keyword(name: &str) -> Keyword {
    match name {
        "items"
        | "prefixItems"
        | "additionalItems"
        | "additionalProperties"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "contains"
        | "propertyNames"
        | "allOf"
        | "anyOf"
        | "oneOf"
        | "not"
        | "if"
        | "then"
        | "else" => Keyword::Schemas,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => Keyword::Named,
        "type" | "enum" | "const" | "required" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
        | "multipleOf" | "minLength" | "maxLength" | "pattern" | "format" | "minItems" | "maxItems" | "uniqueItems"
        | "minContains" | "maxContains" | "minProperties" | "maxProperties" | "dependentRequired" | "$ref"
        | "$schema" | "$id" | "$comment" | "title" | "description" | "default" | "examples" | "deprecated"
        | "readOnly" | "writeOnly" | "contentEncoding" | "contentMediaType" => Keyword::Plain,
        _ => Keyword::Unknown,
    }
}

/// The schemas directly within a schema, and those that only wait to be referred to.
fn within(keywords: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    keywords.iter().flat_map(|(name, value)| -> Box<dyn Iterator<Item = &Value>> {
        match (keyword(name), value) {
            (Keyword::Schemas, Value::Array(list)) => Box::new(list.iter()),
            (Keyword::Schemas, one) => Box::new(std::iter::once(one)),
            (Keyword::Named, Value::Object(named)) => Box::new(named.values()),
            _ => Box::new(std::iter::empty()),
        }
    })
}

/// How large a schema is when every reference is followed.
struct Extent<'a> {
    root: &'a Value,
    counted: usize,
    /// The references that are being followed.
    within: Vec<&'a str>,
}

impl<'a> Extent<'a> {
    fn measure(&mut self, schema: &'a Value) -> Result<(), String> {
        self.counted += 1;
        if self.counted > MAX_SCHEMAS {
            return Err(format!("it has more than {MAX_SCHEMAS} schemas in it when its references are followed"));
        }
        let Value::Object(keywords) = schema else { return Ok(()) };
        if let Some(name) = keywords.keys().find(|name| matches!(keyword(name), Keyword::Unknown)) {
            return Err(format!("the keyword {name} is not supported"));
        }
        // It would be the new root of the references below it.
        if keywords.contains_key("$id") && !std::ptr::eq(schema, self.root) {
            return Err("an $id within the schema is not supported".to_owned());
        }
        if let Some(Value::String(target)) = keywords.get("$ref") {
            self.follow(target)?;
        }
        within(keywords).try_for_each(|schema| self.measure(schema))
    }

    fn follow(&mut self, target: &'a str) -> Result<(), String> {
        let pointer = target.strip_prefix('#').ok_or_else(|| format!("$ref {target} leads out of the schema"))?;
        if self.within.contains(&target) || pointer.is_empty() {
            return Err(format!("$ref {target} leads to itself"));
        }
        let found = self.root.pointer(pointer).ok_or_else(|| format!("$ref {target} leads nowhere"))?;
        self.within.push(target);
        self.measure(found)?;
        self.within.pop();
        Ok(())
    }
}

/// The same schema for a place at `pointer` within another: its references lead to where it is then.
pub(super) fn placed(schema: &Value, pointer: &str) -> Value {
    let Value::Object(keywords) = schema else { return schema.clone() };
    let place = |(name, value): (&String, &Value)| {
        let value = match (keyword(name), value) {
            (_, Value::String(target)) if name == "$ref" && target.starts_with('#') => {
                Value::String(format!("#{pointer}{}", &target[1..]))
            }
            (Keyword::Schemas, Value::Array(list)) => list.iter().map(|schema| placed(schema, pointer)).collect(),
            (Keyword::Schemas, one) => placed(one, pointer),
            (Keyword::Named, Value::Object(named)) => {
                named.iter().map(|(name, schema)| (name.clone(), placed(schema, pointer))).collect()
            }
            (_, other) => other.clone(),
        };
        (name.clone(), value)
    };
    // Which dialect it is in, the whole says.
    keywords.iter().filter(|(name, _)| !matches!(name.as_str(), "$schema" | "$id")).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_that_could_keep_the_process_busy_is_refused() {
        // 2^20 when it is followed: each refers twice to the next.
        let mut doubling = json!({ "$defs": { "n20": { "type": "string" } } });
        for n in 0..20 {
            let next = json!({ "$ref": format!("#/$defs/n{}", n + 1) });
            doubling["$defs"][format!("n{n}")] = json!({ "anyOf": [next, next] });
        }
        doubling["$ref"] = json!("#/$defs/n0");
        for (schema, complaint) in [
            (doubling, "more than 4096"),
            (json!({ "$ref": "#" }), "leads to itself"),
            (json!({ "properties": { "a": { "$ref": "#" } } }), "leads to itself"),
            (
                json!({ "$defs": { "a": { "allOf": [{ "$ref": "#/$defs/b" }] }, "b": { "items": { "$ref": "#/$defs/a" } } } }),
                "leads to itself",
            ),
            (json!({ "$ref": "#/$defs/none" }), "leads nowhere"),
            (json!({ "$ref": "#anchor" }), "leads nowhere"),
            (json!({ "$ref": "https://example.org/s" }), "leads out"),
            (json!({ "properties": { "a": { "$id": "https://example.org/s" } } }), "$id"),
        ] {
            let error = compile(&schema).expect_err(complaint);
            assert!(error.contains(complaint), "{error}, not {complaint}");
        }
    }

    #[test]
    fn a_schema_within_another_says_the_same_there() {
        let own = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": { "n": { "type": "integer" } },
            "properties": { "a": { "$ref": "#/definitions/n" }, "$ref": { "const": { "$ref": "#/kept" } } },
        });
        let outer = json!({ "properties": { "in": placed(&own, "/properties/in") } });
        assert!(!outer.to_string().contains("$schema"));
        let checked = compile(&outer).expect("a schema");
        for (value, valid) in [
            (json!({ "in": { "a": 1, "$ref": { "$ref": "#/kept" } } }), true),
            (json!({ "in": { "a": "1" } }), false),
            (json!({ "in": { "$ref": {} } }), false),
        ] {
            assert_eq!(checked.is_valid(&value), valid, "{value}");
        }
    }
}
