//! What is summed, for whom, and what is not guessed.

use crate::testing::*;
use devmind_domain::json::MAX_SAFE_INTEGER;
use devmind_domain::thread::TokenUsage;

fn tokens(input: u64, output: u64) -> TokenUsage {
    TokenUsage { input: Some(input), output: Some(output), cached: None, reasoning: Some(1) }
}

on_both_stores! {
    #[tokio::test]
    async fn tokens_are_summed_by_person_day_and_model_and_what_was_not_counted_is_said(bench: Bench) {
        let mut bench = bench;
        let served = bench.serve().await;
        let head = bench
            .append([
                thread_started("x1", "ann"),
                thread_started("x2", "bob"),
                responded("x1", "m1", tokens(10, 2)),
                responded("x1", "m1", TokenUsage { input: Some(5), ..TokenUsage::default() }),
                responded("x1", "m2", tokens(7, 1)),
                responded("x2", "m1", tokens(100, 20)),
                // A thread that nobody began is nobody's.
                responded("x3", "m1", tokens(1, 1)),
            ])
            .await;
        served.views.wait_for(head).await.expect("caught up");
        let seen = |rows: Vec<crate::UsageRow>| -> Vec<_> {
            rows.into_iter()
                .map(|row| {
                    (row.user_id.0, row.model, row.answers, row.uncounted, row.input_tokens, row.output_tokens, row.reasoning_tokens)
                })
                .collect()
        };
        let own = served.views.usage(Some(&"ann".into()), None, None).await.expect("usage");
        let day = own[0].day.clone();
        assert_eq!(
            seen(own),
            [("ann".into(), "m1".into(), 2, 1, 15, 2, 1), ("ann".into(), "m2".into(), 1, 0, 7, 1, 1)]
        );
        let all = served.views.usage(None, Some(&day), Some(&day)).await.expect("usage");
        assert_eq!(seen(all).last(), Some(&("bob".into(), "m1".into(), 1, 0, 100, 20, 1)));
        assert_eq!(served.views.usage(None, None, Some("2000-01-01")).await.expect("usage"), []);
        assert_eq!(served.views.usage(None, Some("9000-01-01"), None).await.expect("usage"), []);
        served.stop().await;
    }

    #[tokio::test]
    async fn sums_beyond_every_number_stop_at_the_largest_and_no_view_with_them(bench: Bench) {
        let mut bench = bench;
        let served = bench.serve().await;
        bench.append([thread_started("x1", "ann")]).await;
        // Two sums that each fit, and together do not.
        bench.meddle(&format!(
            "INSERT INTO usage SELECT 'ann', day, 'm1', 0, 0, {0}, 0, 0, 0 FROM (SELECT '{1}' AS day) AS d",
            i64::MAX - 1,
            &devmind_domain::Timestamp::from_micros(now_micros()).to_string()[..crate::DAY_CHARS]
        )).await;
        let head = bench.append([responded("x1", "m1", tokens(MAX_SAFE_INTEGER, 1))]).await;
        served.views.wait_for(head).await.expect("caught up");
        let rows = served.views.usage(None, None, None).await.expect("usage");
        assert_eq!(rows.iter().map(|row| row.input_tokens).max(), Some(i64::MAX as u64), "{rows:?}");
        served.stop().await;
    }
}
