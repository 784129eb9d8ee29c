//! The demonstration that the README names, run as its reader runs it.

use devmind_tests::Process;

#[tokio::test]
async fn a_device_killed_at_every_boundary_of_a_call_is_answered_for_with_proofs_while_dead_and_after_its_restart() {
    let shown = Process::run("prove_once", &[], &[]).await;
    shown.assert_success();
    assert!(shown.stdout.ends_with("6 boundaries, 0 where log, journal and witness disagree\n"), "{shown:#?}");
    assert_eq!(shown.stdout.matches("under the root ").count(), 6, "each answer comes with its proofs: {shown:#?}");
}
