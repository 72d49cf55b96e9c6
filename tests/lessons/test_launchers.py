"""Lessons 07 and 09: what Ray, TorchDistributor and Horovod on Spark do on any machine."""

import pytest

from tests.support.lessons import run_lesson

pytestmark = [pytest.mark.full, pytest.mark.mpi, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ray_lesson(tmp_path_factory):
    return run_lesson("07", tmp_path_factory.mktemp("ray-lesson"))


@pytest.fixture(scope="module")
def spark_lesson(tmp_path_factory):
    return run_lesson("09", tmp_path_factory.mktemp("spark-lesson"))


def test_tasks_give_what_a_loop_gives_and_an_actor_loses_its_state(ray_lesson):
    figures = ray_lesson.figures
    assert figures["batches with the same mean by both"] == 100
    assert figures["files with the same features by both"] == 16
    assert figures["rows after pd.concat"] > figures["users"]
    assert figures["rows after a second groupby"] == figures["users"] == 5000
    assert figures["users with other features than in one pass"] == 0
    assert figures["count after 1,000 increments"] == 1000
    assert figures["count after the actor's restart"] == 0


def test_four_readers_share_one_array_that_none_may_change(ray_lesson):
    figures, array = ray_lesson.figures, 400
    assert figures["readers with the same sum"] == 4
    assert figures["readers that may write into the array"] == 0
    assert figures["resident memory a reader grew by"] >= array
    assert figures["memory that all four readers together add"] < array + 10
    assert figures["private memory a reader grew by"] < array / 10
    assert figures["private memory a reader has after its copy"] >= array
    listed = figures["private memory a reader grew by for the list"]
    assert listed > figures["the same numbers as an array would be"]
    assert "store.svg" in ray_lesson.pictures


def test_a_plan_is_run_again_in_every_epoch_and_ranks_get_equal_shares(ray_lesson):
    figures = ray_lesson.figures
    assert figures["texts cleaned when the plan is made"] == 0
    once = figures["texts cleaned by materialize() and two epochs"]
    assert figures["texts cleaned in two epochs"] == 2 * once == 2 * 279
    assert figures["row reads by both ranks"] == 0
    assert figures["rows left out, all epochs"] == 8  # 223 rows for two ranks, 8 epochs
    assert figures["largest difference of the ranks' weights"] == 0


def test_every_trial_of_tune_is_a_group_of_ranks(ray_lesson):
    figures = ray_lesson.figures
    assert figures["failed trials"] == 0
    assert figures["ranks of each trial"] == 2
    saved = figures["epochs without ASHA"] - figures["epochs trained"]
    assert saved >= figures["trials that ASHA ended early"]
    assert figures["best accuracy"] > 0.5
    assert "tune.svg" in ray_lesson.pictures


def test_a_user_sees_one_model_and_a_larger_share_moves_users_one_way(ray_lesson):
    figures = ray_lesson.figures
    answered = figures["requests that B answered"]
    assert answered == figures["requests whose user's number is below 0.25"]
    assert figures["users who saw both models"] == 0
    assert figures["users who saw both models, drawn for each request"] > 0
    assert figures["requests that B answers then"] > answered
    assert figures["users who left B"] == 0
    assert figures["processes of the models that it replaced"] == 2  # for a number of the split


@pytest.mark.spark
def test_a_model_is_trained_and_saved_in_one_spark_application(spark_lesson):
    figures = spark_lesson.figures
    assert figures["rows to train on"] == 9 * 40
    assert figures["ranks"] == 2
    assert figures["rows a rank trained on"] == 180
    assert figures["ranks on its node, as a rank is told"] == 1
    assert figures["classes of the saved model"] == 9
    assert figures["accuracy of the saved model on 90 other texts"] > 1 / 9


@pytest.mark.spark
def test_a_file_that_fails_looks_like_success_and_a_function_does_not(spark_lesson):
    figures = spark_lesson.figures
    assert figures["failures of three that look like success, by a file"] == 3
    assert figures["failures of three that look like success, by a function"] == 0
    assert figures["starts of the function that raises, where a task may fail 4 times"] == 1


@pytest.mark.spark
def test_horovod_on_spark_returns_each_rank_and_hides_no_failure(spark_lesson):
    figures = spark_lesson.figures
    assert figures["results, one of each rank"] == 2
    assert figures["Horovod: rows a rank trained on"] == 180
    assert figures["Horovod: ranks on its node, as a rank is told"] == 2
    assert figures["largest difference of the ranks' heads"] == 0
    assert figures["failures of two that look like success, by Horovod"] == 0
