//! What is joined, taken back, or stopped.

use super::*;

#[tokio::test]
async fn c05_a_repeated_request_joins_what_is_under_way() {
    let (person, answers) = person();
    let mut fixture = Fixture::new(person.clone()).await;
    let call = request("call", "README.md");
    fixture.send(&call);
    fixture.reaches(Phase::Confirming).await;
    fixture.send(&CallRequest { attempt_no: 2, ..call.clone() });
    let DeviceFrame::Received { attempt_no, phase, .. } = fixture.next().await else { panic!("received") };
    assert_eq!((attempt_no, phase), (2, Phase::Confirming));
    fixture.send(&with_arguments("call", "workspace.read_file", &json!({ "path": "LICENSE" })));
    let DeviceFrame::Refused { code, .. } = fixture.next().await else { panic!("refused") };
    assert_eq!(code, "IDEMPOTENCY_CONFLICT");
    person.shown.notified().await;
    let mut settled = fixture.calls.settled();
    settled.mark_unchanged();
    answers.send(Answer::Allow).expect("person listens");
    settled.changed().await.expect("settled");
    assert_eq!(fixture.settled("call").await, "succeeded");
    assert_eq!(fixture.row("call").await.outcome.expect("settled").executed_attempt_no, 1);
    assert_eq!((fixture.ran(), person.asked.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn c14_a_cancel_of_an_earlier_attempt_does_not_touch_a_later_one() {
    let mut fixture = Fixture::new(Arc::new(Fixed(true))).await;
    // The cancel overtook its request, which never came; the next attempt is wanted.
    fixture.calls.cancel(&"call".into(), 1);
    assert_eq!(fixture.outcome(&CallRequest { attempt_no: 2, ..request("call", "README.md") }).await, "succeeded");

    fixture.calls.cancel(&"early".into(), 3);
    let early = CallRequest { attempt_no: 3, ..request("early", "README.md") };
    assert_eq!(fixture.outcome(&early).await, "cancelled CANCELLED_BY_SERVER");
    assert_eq!(fixture.ran(), 1);
    // After the end a cancel means nothing.
    fixture.calls.cancel(&"call".into(), 9);
    assert_eq!(fixture.settled("call").await, "succeeded");
}

#[tokio::test]
async fn a_cancel_does_not_touch_an_execution_that_a_newer_attempt_has_joined() {
    let (person, answers) = person();
    let mut fixture = Fixture::new(person).await;
    let call = request("call", "README.md");
    fixture.send(&call);
    fixture.reaches(Phase::Confirming).await;
    fixture.send(&CallRequest { attempt_no: 2, ..call });
    fixture.next().await;
    fixture.calls.cancel(&"call".into(), 1);
    let mut settled = fixture.calls.settled();
    settled.mark_unchanged();
    answers.send(Answer::Allow).expect("person listens");
    settled.changed().await.expect("settled");
    assert_eq!(fixture.settled("call").await, "succeeded");
}

#[tokio::test]
async fn c13_a_cancel_closes_the_question_and_is_not_the_persons_no() {
    let (person, answers) = person();
    let mut fixture = Fixture::new(person).await;
    let mut settled = fixture.calls.settled();
    fixture.send(&request("call", "README.md"));
    fixture.reaches(Phase::Confirming).await;
    fixture.calls.cancel(&"call".into(), 1);
    settled.changed().await.expect("settled");
    assert_eq!(fixture.settled("call").await, "cancelled CANCELLED_BY_SERVER");
    let _ = answers.send(Answer::Allow);
    assert_eq!(fixture.ran(), 0);
}

#[tokio::test]
async fn a_stopping_device_closes_its_questions_and_takes_no_more() {
    let (person, _answers) = person();
    let mut fixture = Fixture::new(person).await;
    fixture.send(&request("call", "README.md"));
    fixture.reaches(Phase::Confirming).await;
    fixture.calls.stop().await;
    assert_eq!(fixture.settled("call").await, "cancelled NOT_EXECUTED");
    assert_eq!(fixture.outcome(&request("late", "README.md")).await, "refused DEVICE_BUSY");
}
