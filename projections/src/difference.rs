//! What differs between two states, field by field: for people who ask what changed between two positions.

use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A field that is not the same any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Its path, for example `turns[ID].status`.
    pub field: String,
    /// Its value before; absent where there was none.
    pub before: Option<Value>,
    /// Its value after; absent where there is none any more.
    pub after: Option<Value>,
}

/// The fields in which two states differ, by path; nothing stands for a state that was not there.
pub fn field_changes(before: Option<&Value>, after: Option<&Value>) -> Vec<FieldChange> {
    let fields = |state: Option<&Value>| {
        let mut fields = BTreeMap::new();
        if let Some(state) = state {
            flatten("", state, &mut fields);
        }
        // Where it was read is no difference.
        fields.remove("position");
        fields
    };
    let (before, after) = (fields(before), fields(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let change = |name: &String| FieldChange {
        field: name.clone(),
        before: before.get(name).cloned(),
        after: after.get(name).cloned(),
    };
    names.into_iter().map(change).filter(|change| change.before != change.after).collect()
}

/// Every value by its path. What has an id is named by it, so that an insertion moves nothing.
fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, Value>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(object) if !object.is_empty() => {
            object.iter().for_each(|(name, value)| flatten(&below(name), value, fields));
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let id = ["id", "tool_call_id", "interrupt_id"].iter().find_map(|name| item.get(name)?.as_str());
                let name = id.map_or_else(|| index.to_string(), str::to_owned);
                flatten(&format!("{path}[{name}]"), item, fields);
            }
        }
        scalar => drop(fields.insert(path.to_owned(), scalar.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_insertion_is_one_difference_and_a_change_names_its_field() {
        let before = json!({ "position": 1, "turns": [{ "id": "b", "status": "running" }] });
        let after = json!({ "position": 2, "turns": [{ "id": "a", "status": "failed" }, { "id": "b", "status": "completed" }] });
        let changed: Vec<_> =
            field_changes(Some(&before), Some(&after)).into_iter().map(|change| change.field).collect();
        assert_eq!(changed, ["turns[a].id", "turns[a].status", "turns[b].status"]);
        assert_eq!(field_changes(None, Some(&before)).len(), 2);
        assert_eq!(field_changes(Some(&before), Some(&before)), []);
    }
}
