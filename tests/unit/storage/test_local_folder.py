from concurrent.futures import ThreadPoolExecutor

from nearcast.storage.local_folder import LocalTree


def test_one_of_many_claims_of_a_file_succeeds(tmp_path):
    tree = LocalTree(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            wins = list(pool.map(lambda owner, n=number: tree.claim(f"claims/{n}", str(owner)), range(8)))
            assert sum(wins) == 1
            assert tree.read(f"claims/{number}") == str(wins.index(True)).encode()
    assert tree.names("claims") == {str(number) for number in range(20)}
