//! The order in which calls of one message begin: held against the rules in words, in every order in which its calls
//! can end.
//!
//! Of large messages there are too many orders to go through each. But what begins next follows from counts alone:
//! how many calls of each lane have begun, and how many of these have ended ([`Counts`]). Those of a lane begin in the
//! model's order, so that their number says which have begun; and of a part of the message between two calls that run
//! alone nothing has begun before everything earlier has ended. So which one of the calls under way in a lane ends is the
//! same to all others, and to go through every reachable count is to go through every order. That counts say it all is
//! itself tried, with every order of every small message.

use super::approvals::{call, decided, no, wants, yes};
use super::*;
use crate::conversation::InterruptStatus;
use crate::limits::{DEVICE_SLOTS, MAX_PARALLEL_CALLS};
use crate::tool_call::Target;
use crate::tools::{Approval, ToolDefinition, always_beside_others};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A small generator (SplitMix64): a seed that fails can be tried again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as usize % end
    }
}

/// A message under way, and what the rules say of it in words.
#[derive(Clone)]
struct UnderWay {
    lanes: Vec<Lane>,
    pools: (usize, usize),
    schedule: Schedule,
    begun: BTreeSet<usize>,
    ended: BTreeSet<usize>,
}

impl UnderWay {
    fn new(lanes: &[Lane], pools: (usize, usize)) -> Self {
        let schedule = Schedule::with_pools(lanes.iter().copied(), pools.0, pools.1);
        let (begun, ended) = (BTreeSet::new(), BTreeSet::new());
        let mut new = Self { lanes: lanes.to_vec(), pools, schedule, begun, ended };
        new.begin();
        new
    }

    fn under_way(&self) -> Vec<usize> {
        self.begun.difference(&self.ended).copied().collect()
    }

    fn on_device(&self) -> usize {
        self.under_way().iter().filter(|index| self.lanes[**index] == Lane::Device).count()
    }

    /// Whether all calls before this one, or those that run alone, have ended.
    fn nothing_before(&self, index: usize, only_alone: bool) -> bool {
        (0..index).all(|i| self.ended.contains(&i) || (only_alone && self.lanes[i] != Lane::Alone))
    }

    fn begin(&mut self) {
        for index in self.schedule.begin() {
            assert!(self.begun.insert(index), "{index} begins twice: {:?}", self.lanes);
            let waits_for_others_alone = self.lanes[index] != Lane::Alone;
            assert!(self.nothing_before(index, waits_for_others_alone), "{index} began too soon: {self:?}");
        }
        let under_way = self.under_way();
        assert!(under_way.len() <= self.pools.0 && self.on_device() <= self.pools.1, "{self:?}");
        if under_way.iter().any(|index| self.lanes[*index] == Lane::Alone) {
            assert_eq!(under_way.len(), 1, "what runs alone is not alone: {self:?}");
        }
        // Whoever waits has a reason.
        for index in (0..self.lanes.len()).filter(|index| !self.begun.contains(index)) {
            let full = under_way.len() == self.pools.0
                || (self.lanes[index] == Lane::Device && self.on_device() == self.pools.1);
            let held_back = !self.nothing_before(index, self.lanes[index] != Lane::Alone);
            assert!(full || held_back, "nothing keeps {index} from beginning: {self:?}");
        }
        for index in 0..self.lanes.len() {
            assert_eq!(self.schedule.is_under_way(index), under_way.contains(&index));
        }
    }

    fn end(&mut self, index: usize) {
        self.schedule.end(index);
        self.ended.insert(index);
        self.begin();
    }

    fn is_over(&self) -> bool {
        assert_eq!(self.schedule.is_over(), self.ended.len() == self.lanes.len());
        self.schedule.is_over()
    }

    fn counts(&self) -> Counts {
        let count = |calls: &BTreeSet<usize>, lane| calls.iter().filter(|index| self.lanes[**index] == lane).count();
        LANES.map(|lane| (count(&self.begun, lane), count(&self.ended, lane)))
    }

    /// What follows when a call ends.
    fn after(&self, index: usize) -> Self {
        let mut next = self.clone();
        next.end(index);
        next
    }

    /// Every order in which the calls can end from here; how many there are. `follows`: the counts that came after those
    /// of a state, when a call of a lane ended.
    fn every_order(&self, follows: &mut BTreeMap<(Counts, usize), Counts>) -> usize {
        if self.is_over() {
            return 1;
        }
        let under_way = self.under_way();
        assert!(!under_way.is_empty(), "calls wait for each other: {self:?}");
        let orders = under_way.into_iter().map(|index| {
            let next = self.after(index);
            let lane = LANES.iter().position(|lane| *lane == self.lanes[index]).expect("a lane");
            let known = *follows.entry((self.counts(), lane)).or_insert_with(|| next.counts());
            assert_eq!(known, next.counts(), "it matters which call of a lane ends: {index} of {self:?}");
            next.every_order(follows)
        });
        orders.sum()
    }

    /// Every count that can be reached from here, each by one of the orders that lead to it; how many there are, and how
    /// many calls are under way in the fullest.
    fn every_count(self) -> (usize, usize) {
        let (mut seen, mut open, mut fullest) = (BTreeSet::from([self.counts()]), vec![self], 0);
        while let Some(state) = open.pop() {
            let under_way = state.under_way();
            fullest = fullest.max(under_way.len());
            assert!(state.is_over() || !under_way.is_empty(), "calls wait for each other: {state:?}");
            for lane in LANES {
                let ends = under_way.iter().find(|index| state.lanes[**index] == lane);
                let next = ends.map(|index| state.after(*index));
                open.extend(next.filter(|next| seen.insert(next.counts())));
            }
        }
        (seen.len(), fullest)
    }
}

/// How many calls of each lane have begun, and have ended.
type Counts = [(usize, usize); 3];

impl std::fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, begun {:?}, ended {:?}", self.lanes, self.begun, self.ended)
    }
}

const LANES: [Lane; 3] = [Lane::Alone, Lane::Shared, Lane::Device];

#[test]
fn every_order_of_every_message_of_five_calls_keeps_the_rules_and_ends() {
    let mut orders = 0;
    for number in 0..LANES.len().pow(5) {
        let lanes: Vec<_> = (0..5).map(|place| LANES[number / LANES.len().pow(place) % LANES.len()]).collect();
        for pools in [(3, 1), (2, 2), (10, 4)] {
            orders += UnderWay::new(&lanes, pools).every_order(&mut BTreeMap::new());
        }
    }
    assert!(orders > 8_000, "only {orders} orders: the messages explore too little");
}

#[test]
fn thirty_mixed_calls_keep_the_rules_and_end_in_every_order_in_which_their_gates_can_open() {
    let (mut counts, mut fullest) = (0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let rarely_alone = 1 + random.below(12);
        let lane = |random: &mut Random| match random.below(rarely_alone) {
            0 => Lane::Alone,
            _ => LANES[1 + random.below(2)],
        };
        let lanes: Vec<_> = (0..30).map(|_| lane(&mut random)).collect();
        let (of_it, at_once) = UnderWay::new(&lanes, (MAX_PARALLEL_CALLS, DEVICE_SLOTS)).every_count();
        (counts, fullest) = (counts + of_it, fullest.max(at_once));
    }
    assert_eq!(fullest, MAX_PARALLEL_CALLS, "the pool was never full");
    assert!(counts > 3_000, "only {counts} counts: the messages explore too little");
}

/// Tools of every kind; which of them a person must allow.
fn tools() -> Registry {
    let tool = |name: &str, change: fn(&mut ToolDefinition)| {
        let object = || json!({ "type": "object" });
        let mut tool =
            ToolDefinition { approval: Approval::Never, ..ToolDefinition::new(name, "", object(), object()) };
        change(&mut tool);
        tool
    };
    Registry::new([
        tool("shared", |tool| tool.concurrency_safe = always_beside_others()),
        tool("alone", |_| {}),
        tool("small", |tool| tool.concurrency_safe = Some(Arc::new(|arguments| arguments["small"] == true))),
        tool("broken", |tool| tool.concurrency_safe = Some(Arc::new(|_| panic!("a fault")))),
        tool("device", |tool| {
            (tool.target, tool.timeout_ms) = (Target::Device, Some(1));
            tool.concurrency_safe = always_beside_others();
        }),
        tool("asked", |tool| {
            (tool.approval, tool.concurrency_safe) = (Approval::Always, always_beside_others());
        }),
        tool("asked_alone", |tool| tool.approval = Approval::Always),
    ])
    .expect("whole tools")
}

#[test]
fn only_an_explicit_yes_for_these_valid_arguments_lets_a_call_run_beside_others() {
    for (name, arguments, lane) in [
        ("shared", "{}", Lane::Shared),
        ("device", "{}", Lane::Device),
        ("alone", "{}", Lane::Alone),
        ("small", r#"{"small":true}"#, Lane::Shared),
        ("small", r#"{"small":1}"#, Lane::Alone),
        ("small", "{}", Lane::Alone),
        ("broken", "{}", Lane::Alone),
        ("shared", "{", Lane::Alone),
        ("shared", "[]", Lane::Alone),
        ("unknown", "{}", Lane::Alone),
    ] {
        let planned =
            PlannedCall { call: call("c", name, arguments), over_limit: false, permission: Permission::NotNeeded };
        assert_eq!(Lane::of(&tools(), &planned), lane, "{name} {arguments}");
    }
}

/// Ports whose calls end in an order that a seed gives, and whose person answers now and then.
struct World {
    random: Random,
    tools: Registry,
    thread: Thread,
    decisions: Vec<(String, InterruptStatus)>,
    approvals: Approvals,
    /// Calls in the order in which their results came.
    order: Vec<String>,
}

impl World {
    fn hash(&self, call: &ModelToolCall) -> String {
        crate::tools::admit(&self.tools, call, false).call_hash
    }
}

impl AgentPorts for World {
    type Halt = ();

    fn thread(&self) -> &Thread {
        &self.thread
    }
    fn approvals(&self) -> &Approvals {
        &self.approvals
    }
    fn tools(&self) -> &Registry {
        &self.tools
    }
    async fn call_model(&mut self, round: u32) -> Result<(), ()> {
        self.thread.evolve(&request(round));
        self.thread.evolve(&response(round, &[]));
        Ok(())
    }
    async fn judge(&mut self, calls: Vec<PlannedCall>) -> Result<(), ()> {
        for planned in &calls {
            let admission = admit(&self.tools, &planned.call, planned.over_limit);
            let verdict = Verdict::of_tool(self.tools.get(&admission.tool).expect("a tool of the set").approval);
            self.approvals.judged(ToolCallId::of(&"g".into(), &planned.call.id), admission.call_hash, verdict);
        }
        Ok(())
    }
    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), ()> {
        let mut schedule = Schedule::of(&self.tools, &calls);
        while !schedule.is_over() {
            schedule.begin();
            let under_way: Vec<_> = (0..calls.len()).filter(|index| schedule.is_under_way(*index)).collect();
            let ended = under_way[self.random.below(under_way.len())];
            schedule.end(ended);
            let observed = result(&calls[ended].call.id);
            if let ThreadEvent::ToolResultObserved(observed) = &observed {
                let decided = self.thread.decide(ThreadCommand::ObserveResult(observed.clone(), Deferred::default()));
                assert!(decided.is_ok(), "{decided:?}");
            }
            self.thread.evolve(&observed);
            self.order.push(calls[ended].call.id.clone());
        }
        Ok(())
    }
    async fn await_approval(&mut self, calls: Vec<PlannedCall>) -> Result<(), ()> {
        let waiting = self.thread.exchanges[0].unanswered().count();
        assert_eq!(calls.len(), waiting, "only calls that wait for a person are left");
        // Some are answered, at least one; the others are asked about again.
        for (index, planned) in calls.iter().enumerate() {
            let status = [yes(), no(), InterruptStatus::Expired][self.random.below(3)].clone();
            if index == 0 || self.random.below(2) == 0 {
                self.decisions.push((planned.call.id.clone(), status));
            }
        }
        let calls = &self.thread.exchanges[0].calls;
        let by_id = |id: &str| calls.iter().find(|call| call.id == id).expect("a call of the message");
        let hashed: Vec<_> =
            self.decisions.iter().map(|(id, status)| (id.as_str(), self.hash(by_id(id)), status.clone())).collect();
        let decisions: Vec<_> = hashed.iter().map(|(id, hash, status)| (*id, hash.as_str(), status.clone())).collect();
        self.approvals = decided(&decisions);
        Ok(())
    }
}

#[test]
fn a_message_of_thirty_calls_of_every_kind_gets_one_result_each_and_the_prompt_has_them_in_the_models_order() {
    let kinds = ["shared", "shared", "device", "device", "alone", "asked", "asked_alone", "unknown"];
    let (mut asked, mut reordered) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let calls: Vec<_> = (0..30).map(|n| call(&format!("c{n}"), kinds[random.below(kinds.len())], "{}")).collect();
        let ids: Vec<_> = calls.iter().map(|call| call.id.clone()).collect();
        let thread = wants(&calls);
        let (tools, decisions, approvals) = (tools(), Vec::new(), decided(&[]));
        let thread = Thread {
            started: Some(ThreadStarted {
                conversation_id: "c".into(),
                turn_id: "t".into(),
                run_id: "r".into(),
                user_id: "alice".into(),
            }),
            ..thread
        };
        let mut world = World { random, tools, thread, decisions, approvals, order: Vec::new() };
        while ready(run_agent(&mut world)).expect("no halt") == AgentEnd::Interrupted {
            asked += 1;
        }
        let once: BTreeSet<_> = world.order.iter().collect();
        assert_eq!((once.len(), world.order.len()), (30, 30), "seed {seed}");
        reordered += usize::from(world.order != ids);
        let told = prompt(&[], &world.thread).into_iter().filter_map(|message| match message {
            Message::Tool { tool_call_id, .. } => Some(tool_call_id),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), ids, "seed {seed}");
    }
    assert!(asked > 400 && reordered > 390, "asked {asked}, reordered {reordered}: this explores too little");
}
